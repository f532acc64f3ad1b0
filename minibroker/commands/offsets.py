"""`minibroker offsets`: the first and end offsets of partitions."""

from typing import TYPE_CHECKING

import click

from minibroker.command_line import (
    EXIT_FINE,
    CommandFailed,
    bootstrap_option,
    json_option,
    print_json,
    print_table,
    run_async,
    timeout_option,
    topics_option,
)

if TYPE_CHECKING:
    from minibroker.protocol.ids import TopicPartition


@click.command()
@bootstrap_option
@topics_option(required=False)
@click.option("--at", "moment", metavar="@TIME", help="Also print the first offset not older than this.")
@timeout_option(30)
@json_option
def offsets(
    bootstrap_servers: str, topics: tuple[str, ...], moment: str | None, timeout_s: float, as_json: bool
) -> int:
    """Print the first and end offsets of partitions.

    The end is the high watermark: the offset after the last committed record.
    """
    from minibroker.records.starting_point import BadStartingPoint, StartKind, parse_start

    try:
        point = parse_start(moment if moment.startswith("@") else f"@{moment}") if moment is not None else None
    except BadStartingPoint as error:
        raise click.BadParameter(str(error), param_hint="--at") from None
    assert point is None or point.start is StartKind.TIME
    rows = run_async(_ask(bootstrap_servers, topics, None if point is None else point.number, timeout_s), timeout_s + 5)
    if as_json:
        for partition, start, end, at in rows:
            place = {"topic": partition.topic, "partition": partition.partition, "start_offset": start}
            print_json(place | {"end_offset": end} | ({"offset_at": at} if point is not None else {}))
        return EXIT_FINE
    header = ("PARTITION", "START", "END", "RECORDS")
    cells = [(str(partition), start, end, end - start) for partition, start, end, _ in rows]
    if point is None:
        print_table(header, cells)
    else:
        print_table((*header, "AT"), [(*cell, row[3]) for cell, row in zip(cells, rows, strict=True)])
    return EXIT_FINE


async def _ask(
    servers: str, topics: tuple[str, ...], timestamp_ms: int | None, timeout_s: float
) -> "list[tuple[TopicPartition, int, int, int | None]]":
    from minibroker.client.consumer.consumer import Consumer
    from minibroker.client.errors import MinibrokerError
    from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
    from minibroker.opened_client import FIRST_ANSWER_MS, opened, require_topics
    from minibroker.protocol.ids import TopicPartition
    from minibroker.waiting_line import waiting_line

    timeout_ms = max(1, round(timeout_s * 1000))
    try:
        if not topics:
            async with BrokerQueries() as queries, waiting_line("waiting for the brokers' answers"):
                topics = tuple(sorted(topic.name for topic in (await queries.metadata(servers)).topics))
        client = Consumer(bootstrap_servers=servers, bootstrap_timeout_ms=min(FIRST_ANSWER_MS, timeout_ms))
        async with opened(client, servers) as consumer, waiting_line("waiting for the leaders' answers"):
            await require_topics(consumer._cluster, topics, timeout_ms)
            partitions = [
                TopicPartition(topic, index)
                for topic in topics
                for index in await consumer.partitions_for(topic, timeout_ms)
            ]
            if not partitions:
                return []
            starts = await consumer.beginning_offsets(partitions, timeout_ms)
            ends = await consumer.end_offsets(partitions, timeout_ms)
            if timestamp_ms is None:
                return [(partition, starts[partition], ends[partition], None) for partition in partitions]
            found = await consumer.offsets_for_times(dict.fromkeys(partitions, timestamp_ms), timeout_ms)
            moments = {partition: answer.offset if answer else None for partition, answer in found.items()}
            return [(partition, starts[partition], ends[partition], moments[partition]) for partition in partitions]
    except (MinibrokerError, NoAnswer) as error:
        raise CommandFailed(str(error)) from None
