"""What a command tells its user of brokers that do not answer yet, of topics that do not exist, and of deletions."""

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from minibroker import opened_client
from minibroker.client.admin import AdminClient
from minibroker.command_line import CommandFailed
from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
from minibroker.opened_client import opened, require_topics, require_topics_that_stay, warn_of_deletions
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    Response,
    TopicDeletion,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from minibroker.simulation.world.world import SimulatedWorld
from tests.client.fake_cluster import FakeCluster


@asynccontextmanager
async def client(until: asyncio.Event | None) -> AsyncIterator[str]:
    """Opens at once, or when the event is set."""
    if until is not None:
        await until.wait()
    yield "client"


async def stderr_of_a_slow_start(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(opened_client, "LOOKING_AFTER_S", 0.0)
    until = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, until.set)
    async with opened(client(until), "host:9092") as entered:
        assert entered == "client"
    return capsys.readouterr().err


async def test_a_terminal_shows_that_no_broker_answers_until_one_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = await stderr_of_a_slow_start(monkeypatch, capsys)
    assert "no broker answers yet at host:9092" in shown
    assert shown.endswith("\r\x1b[K")


async def test_a_pipe_gets_no_progress_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await stderr_of_a_slow_start(monkeypatch, capsys) == ""


async def test_a_start_that_works_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    async with opened(client(None), "host:9092"):
        pass
    assert capsys.readouterr().err == ""


async def test_a_warning_of_the_client_is_a_warning_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("minibroker.client")
    async with opened(client(None), "host:9092"):
        log.warning("no records of %s", "t-0")
        log.info("t-0 is read again")
    log.warning("not of a command")
    assert capsys.readouterr().err == "warning: no records of t-0\n"


async def test_where_every_server_refuses_a_command_fails_at_once_and_names_its_own_option() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{unused.getsockname()[1]}"
        began = asyncio.get_running_loop().time()
        with pytest.raises(CommandFailed) as caught:
            async with opened(AdminClient(bootstrap_servers=server), server):
                pass
        async with BrokerQueries() as queries:
            with pytest.raises(NoAnswer) as other:
                await queries.describe_cluster(server)
    assert asyncio.get_running_loop().time() - began < 5, "of the ten seconds that a client waits"
    assert str(caught.value) == (
        f"no broker answered at {server} (connection refused)."
        " Start one with `minibroker cluster up`, or pass the right address with -b"
    )
    assert str(other.value) == str(caught.value)
    assert other.value.is_refused


def with_deletion() -> FakeCluster:
    """Topic `old` is marked for deletion, `lines` is not."""
    cluster = FakeCluster(SimulatedWorld(seed=1))
    cluster.add_topic("lines")
    cluster.add_topic("old")

    def answer(broker: int, request: IncomingRequest) -> Response | bool | None:
        if not isinstance(request.body, DescribeClusterRequest):
            return None
        marked = [TopicDeletion(topic="old", reason="old waits for broker 3")]
        return DescribeClusterResponse(topic_deletions=marked)

    cluster.intercept = answer
    return cluster


def test_a_command_that_writes_refuses_a_topic_that_is_marked_for_deletion() -> None:
    """Once `produce` wrote to it, and the records went with it."""

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            await require_topics_that_stay(admin._cluster, ["lines"], 5_000)
            await require_topics(admin._cluster, ["old"], 5_000)
            with pytest.raises(CommandFailed, match=r"^old waits for broker 3; what is written now would be deleted"):
                await require_topics_that_stay(admin._cluster, ["lines", "old"], 5_000)

    cluster = with_deletion()
    cluster.run(main)


def test_a_command_that_reads_warns_of_a_topic_that_is_marked_for_deletion(capsys: pytest.CaptureFixture[str]) -> None:
    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            assert await warn_of_deletions(admin._cluster, ["lines"]) == {}
            assert list(await warn_of_deletions(admin._cluster)) == ["old"]

    cluster = with_deletion()
    cluster.run(main)
    assert capsys.readouterr().err == "warning: old waits for broker 3\n"


def test_all_names_that_no_broker_knows_are_told() -> None:
    """Once only the first was."""

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            with pytest.raises(
                CommandFailed, match=r"^there are no topics 'line' \(did you mean 'lines'\?\), 'orders'\. "
            ):
                await require_topics(admin._cluster, ["line", "lines", "orders"], 5_000)

    cluster = with_deletion()
    cluster.run(main)


def test_a_name_that_no_topic_may_have_is_told_as_such() -> None:
    """`consume lines/1` was told INVALID_TOPIC_EXCEPTION only."""

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            with pytest.raises(CommandFailed, match=r"^'lines/1' is no topic's name: .*letters, digits.*a topic alone"):
                await require_topics(admin._cluster, ["lines", "lines/1"], 5_000)

    cluster = with_deletion()
    cluster.run(main)


def test_a_deletion_of_an_unknown_topic_does_not_advise_to_create_it() -> None:
    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            with pytest.raises(CommandFailed) as failed:
                await require_topics(admin._cluster, ["nope"], 5_000, or_deletions=True)
            assert failed.value.message == "there is no topic 'nope'. `minibroker topic list` prints all topics"

    cluster = with_deletion()
    cluster.run(main)


def test_a_topic_of_which_the_deletion_has_begun_is_told_as_such() -> None:
    """Brokers have forgotten it: once it was only unknown. A deletion that is repeated accepts it."""

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            with pytest.raises(CommandFailed, match=r"^old waits for broker 3; there is no topic 'x'"):
                await require_topics(admin._cluster, ["old", "x"], 5_000)
            await require_topics(admin._cluster, ["old", "lines"], 5_000, or_deletions=True)

    cluster = with_deletion()
    del cluster.topic_ids["old"], cluster.partitions[TopicPartition("old", 0)]
    cluster.run(main)
