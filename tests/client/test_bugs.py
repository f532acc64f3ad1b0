"""A bug in a task of a client's own: it is seen, and nothing is repeated or waited for in silence."""

import asyncio
import contextlib

import pytest

from minibroker.client.cluster import Cluster, ClusterSettings
from minibroker.client.connections import Connections
from minibroker.client.consumer.positions import PositionResolver
from minibroker.client.errors import DeliveryAborted, FlushTimedOut
from minibroker.client.limits import Deadline
from minibroker.client.metadata_cache import Address
from minibroker.client.producer.identity_request import IdentityRequest
from minibroker.client.producer.producer import Producer
from minibroker.runtime.ports import Runtime
from minibroker.simulation.world.loop import Unhandled
from tests.client.fake_cluster import PORT, FakeCluster
from tests.client.reading import earliest


class Bug(Exception):
    """Raised by no code but that of these tests."""


@pytest.fixture
def runs() -> list[str]:
    """How often the code with the bug was run."""
    return []


def plant(monkeypatch: pytest.MonkeyPatch, runs: list[str], owner: type, name: str) -> None:
    def broken(*_: object) -> None:
        runs.append(name)
        raise Bug(name)

    monkeypatch.setattr(owner, name, broken)


def test_a_call_of_a_consumer_raises_a_bug_in_the_search_for_positions(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, runs: list[str]
) -> None:
    plant(monkeypatch, runs, PositionResolver, "_reset")

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            for call in (consumer.getone, consumer.getmany, consumer.getmany_batches):
                with pytest.raises(Bug):
                    await call(timeout_ms=5_000)

    cluster.run(main)
    assert len(runs) == 1


@pytest.mark.expects_loop_errors
@pytest.mark.parametrize(("owner", "name"), [(IdentityRequest, "_request"), (Cluster, "_fetch_metadata")])
def test_a_bug_in_a_task_of_a_producer_reaches_the_exception_handler_of_the_loop(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, runs: list[str], owner: type, name: str
) -> None:
    plant(monkeypatch, runs, owner, name)

    async def main(runtime: Runtime) -> None:
        with contextlib.suppress(Bug, FlushTimedOut, DeliveryAborted):
            async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
                await producer.send("t", b"a")
                await producer.close(timeout_ms=2_000)

    with pytest.raises(Unhandled, match=name):
        cluster.run(main)
    assert 1 <= len(runs) < 10, "not again and again without a pause"


@pytest.mark.expects_loop_errors
def test_a_start_under_a_name_raises_the_bug_that_kept_it_from_its_identity(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, runs: list[str]
) -> None:
    plant(monkeypatch, runs, IdentityRequest, "_request")

    async def main(runtime: Runtime) -> None:
        with pytest.raises(Bug):
            await Producer(bootstrap_servers=cluster.bootstrap, producer_name="orders", runtime=runtime).start()

    with pytest.raises(Unhandled, match="_request"):
        cluster.run(main)


@pytest.mark.expects_loop_errors
def test_a_bug_in_an_attempt_to_connect_is_seen_though_no_call_waits_for_it(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, runs: list[str]
) -> None:
    plant(monkeypatch, runs, Connections, "_connect")

    async def main(runtime: Runtime) -> None:
        address = Address("broker1", PORT)
        client = Cluster(runtime, ClusterSettings(bootstrap=[address], client_id="test"))
        assert client.connections.open_connection(address) is None
        await asyncio.sleep(1)
        await client.close()

    with pytest.raises(Unhandled, match="_connect"):
        cluster.run(main)
    assert len(runs) == 1


@pytest.mark.expects_loop_errors
def test_a_bug_in_the_search_for_metadata_ends_the_calls_that_wait_for_them(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, runs: list[str]
) -> None:
    """Their deadlines would blame the brokers."""

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            plant(monkeypatch, runs, Cluster, "_fetch_metadata")
            for _ in range(2):
                with pytest.raises(Bug):
                    await producer._cluster.refresh(Deadline(5_000))

    with pytest.raises(Unhandled, match="_fetch_metadata"):
        cluster.run(main)
    assert len(runs) == 1
