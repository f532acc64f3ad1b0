"""`minibroker replicas`: the state of each replica, as its broker reports it."""

from collections.abc import Collection
from typing import TYPE_CHECKING

import click

from minibroker.command_line import (
    EXIT_FINE,
    EXIT_FOUND_WRONG,
    CommandFailed,
    bootstrap_option,
    json_option,
    print_json,
    print_table,
    run_async,
    timeout_option,
    topics_option,
    warn,
)
from minibroker.unread_output import read_or_not

if TYPE_CHECKING:
    from minibroker.observation.cluster_view import ClusterView


@click.command()
@bootstrap_option
@topics_option(required=False)
@click.option("--check", is_flag=True, help="Exit code 10 unless the cluster is healthy.")
@timeout_option(15)
@json_option
@read_or_not()
def replicas(bootstrap_servers: str, topics: tuple[str, ...], check: bool, timeout_s: float, as_json: bool) -> int:
    """Print each replica's role, epoch, LEO, HW, lag and ISR.

    LEO: log end offset. HW: high watermark, below which records are committed. Both exclusive. LAG of a replica that
    does not answer is what its leader knows: '-' nothing, '5+' at least 5.
    """
    import msgspec

    from minibroker.observation.cluster_view import health_problems
    from minibroker.observation.replica_table import HEADER, replica_rows

    view = run_async(_look(bootstrap_servers, list(topics) or None), timeout_s, "replicas")
    rows = replica_rows(view)
    if as_json:
        for row in rows:
            print_json(msgspec.to_builtins(row))
    else:
        print_table(HEADER, [row.cells() for row in rows])
    reasons = health_problems(view)
    for reason in reasons:
        warn(reason)
    return EXIT_FOUND_WRONG if check and reasons else EXIT_FINE


async def _look(servers: str, topics: list[str] | None) -> "ClusterView":
    from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
    from minibroker.observation.cluster_view import view_cluster
    from minibroker.waiting_line import waiting_line

    async with BrokerQueries() as queries, waiting_line("waiting for the brokers' answers"):
        try:
            view = await view_cluster(queries, servers, topics)
            await require_described(view, topics, servers)
            return view
        except NoAnswer as error:
            raise CommandFailed(str(error)) from None


async def require_described(view: "ClusterView", topics: Collection[str] | None, servers: str) -> None:
    """Raise CommandFailed, with similar names, for topics that the view lacks. Raises NoAnswer."""
    from minibroker.observation.broker_queries import BrokerQueries
    from minibroker.unknown_names import impossible_topics, unknown_topics

    missing = sorted({*(topics or ())} - {partition.topic for partition in view.partitions})
    if missing:
        async with BrokerQueries() as queries:
            known = [topic.name for topic in (await queries.metadata(servers)).topics]
        raise CommandFailed(impossible_topics(missing) or unknown_topics(missing, known))
