"""ZooKeeper's data is replaced by an older copy while no broker runs."""

import asyncio
from collections.abc import Awaitable, Callable
from copy import deepcopy

import pytest

from minibroker.broker.membership.noted_changes import CHECK_MS
from minibroker.client.admin import AdminClient
from minibroker.client.producer.producer import Producer
from minibroker.protocol.files.checkpoints import NOTED_CHANGES
from minibroker.runtime.ports import DeleteOp
from minibroker.simulation.world.znode_tree import ZNodeTree
from tests.simulation.test_whole_stops import RECORDS, TOPIC, Stop

MORE_RECORDS = 50
STARTS = 12
"""With more transactions than the copy lacks: by its newest transaction it would be as new as the youngest then."""
FILE = f"/data/log/{NOTED_CHANGES}"


async def write_without_broker_3(stop: Stop) -> ZNodeTree:
    """Broker 3 leaves the ISR, which then acknowledges more. Returns ZooKeeper's data as it was before."""
    older = deepcopy(stop.world.zookeeper.tree)
    stop.kill(3)
    await stop.cluster.until(lambda: stop.cluster.in_sync_replicas(TOPIC) == (1, 2), what="an ISR without broker 3")
    await write_more(stop)
    return older


async def write_more(stop: Stop) -> None:
    servers, runtime = stop.cluster.bootstrap_servers, stop.cluster.client_runtime()
    async with Producer(bootstrap_servers=servers, runtime=runtime) as producer:
        for number in range(MORE_RECORDS):
            await producer.send(TOPIC, b"more %d" % number)


def put_in(stop: Stop, tree: ZNodeTree) -> None:
    """While nothing is connected. The sessions of that time are over."""
    zookeeper = stop.world.zookeeper
    zookeeper.stop()
    for path in [path for path, node in tree.nodes.items() if node.ephemeral_owner]:
        tree.transact([DeleteOp(path=path)], 0)
    zookeeper.tree, zookeeper.sessions = tree, {}
    zookeeper.start()


def remove_file(stop: Stop, *broker_ids: int) -> None:
    """Where there is one: broker 3 may have been killed before it noted a change."""
    for broker_id in broker_ids:
        directory, name = stop.world.machine(f"broker-{broker_id}").storage.parent_of(FILE)
        directory.entries.pop(name, None)


@pytest.mark.invariant("I3")
@pytest.mark.expects_loop_errors
@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_no_broker_starts_on_an_older_copy_and_all_start_on_the_youngest(ending: str) -> None:
    async def story(stop: Stop) -> None:
        older = await write_without_broker_3(stop)
        if ending == "stopped":
            await stop.stop(1, 2)
        else:
            await asyncio.sleep(2 * CHECK_MS / 1000)
            stop.kill(1, 2)
        youngest = deepcopy(stop.world.zookeeper.tree)
        put_in(stop, older)
        for _ in range(STARTS):
            await stop.start(1, 2)
            await asyncio.sleep(10)
            assert stop.cluster.alive() == []
            crashes = dict(stop.world.crashes)
            stop.world.crashes.clear()
            assert sorted(crashes) == ["broker-1", "broker-2"]
            assert all("restored from an older copy" in str(error) for error in crashes.values())
        put_in(stop, youngest)
        await stop.start(3, 1, 2)
        await stop.cluster.until(lambda: stop.cluster.in_sync_replicas(TOPIC) == (1, 2, 3), 60, "a full ISR")
        assert stop.ends() == dict.fromkeys((1, 2, 3), RECORDS + MORE_RECORDS)

    Stop().play(story)


def test_brokers_start_on_an_older_copy_once_the_file_is_removed() -> None:
    """The operator's way where no younger copy exists: first, alone, the brokers that have all records."""

    async def story(stop: Stop) -> None:
        older = await write_without_broker_3(stop)
        await stop.stop(1, 2)
        put_in(stop, older)
        remove_file(stop, 1, 2, 3)
        await stop.start(1, 2)
        await stop.cluster.until(lambda: stop.cluster.leader(TOPIC) in (1, 2), 60, "a leader")
        await stop.start(3)
        await stop.cluster.until(lambda: stop.cluster.in_sync_replicas(TOPIC) == (1, 2, 3), 60, "a full ISR")
        assert stop.ends() == dict.fromkeys((1, 2, 3), RECORDS + MORE_RECORDS)

    Stop().play(story)


def test_damaged_file_is_named_and_stops_no_start(caplog: pytest.LogCaptureFixture) -> None:
    async def story(stop: Stop) -> None:
        await stop.stop(1, 2, 3)
        storage = stop.world.machine("broker-1").storage
        storage.flip_bit(FILE, 3)
        await stop.start(1, 2, 3)
        await stop.until_whole()

    Stop().play(story)
    assert f"{FILE} is not used" in caplog.text
    assert "an older copy of ZooKeeper's data would not be noticed" in caplog.text


@pytest.mark.expects_loop_errors
def test_exchanged_disks_are_no_older_copy() -> None:
    """The disk that has counted more does not make the start of the other broker ask for another copy."""

    async def story(stop: Stop) -> None:
        await write_without_broker_3(stop)
        await stop.stop(2, 1)
        second, third = (stop.world.machine(f"broker-{each}") for each in (2, 3))
        second.storage, third.storage = third.storage, second.storage
        await stop.start(2, 3)
        await asyncio.sleep(5)
        errors = {process: str(error) for process, error in stop.world.crashes}
        stop.world.crashes.clear()
        assert {process: error.partition(": check")[0] for process, error in errors.items()} == {
            "broker-2": "log directory /data/log belongs to broker 3, not to broker 2",
            "broker-3": "log directory /data/log belongs to broker 2, not to broker 3",
        }

    Stop().play(story)


async def lengthen_retention(stop: Stop) -> None:
    """The copy has the short one, which deletes records."""
    async with AdminClient(
        bootstrap_servers=stop.cluster.bootstrap_servers, runtime=stop.cluster.client_runtime()
    ) as admin:
        await admin.alter_configs({"log.retention.ms": "-1"}, broker_id=2)


async def start_a_named_producer(stop: Stop) -> None:
    """By the copy, the epoch that it got is still to be given."""
    servers, runtime = stop.cluster.bootstrap_servers, stop.cluster.client_runtime()
    async with Producer(bootstrap_servers=servers, runtime=runtime, producer_name="p") as producer:
        await producer.send_and_wait(TOPIC, b"value")


@pytest.mark.invariant("I3")
@pytest.mark.expects_loop_errors
@pytest.mark.parametrize("change", [lengthen_retention, start_a_named_producer])
def test_copy_that_lacks_only_a_setting_or_an_epoch_of_a_producer_is_older(
    change: Callable[[Stop], Awaitable[None]],
) -> None:
    """One broker knows of it, and its refusal tells the operator."""

    async def story(stop: Stop) -> None:
        await asyncio.sleep(2 * CHECK_MS / 1000)
        older = deepcopy(stop.world.zookeeper.tree)
        await change(stop)
        await asyncio.sleep(2 * CHECK_MS / 1000)
        stop.kill(1, 2, 3)
        put_in(stop, older)
        await stop.start(1, 2, 3)
        await asyncio.sleep(2)
        errors = [str(error) for _, error in stop.world.crashes]
        stop.world.crashes.clear()
        assert len(errors) == 1
        assert "restored from an older copy" in errors[0]

    Stop().play(story)


@pytest.mark.invariant("I3")
@pytest.mark.expects_loop_errors
def test_broker_that_stopped_without_zookeeper_does_not_lead_alone_on_an_older_copy() -> None:
    """It stopped cleanly, but could not note that: by the copy it is a member of the ISR, and its log is whole."""

    async def story(stop: Stop) -> None:
        await asyncio.sleep(2 * CHECK_MS / 1000)
        older = deepcopy(stop.world.zookeeper.tree)
        stop.world.zookeeper.stop()
        await stop.stop(3)
        stop.world.zookeeper.start()
        await stop.cluster.until(lambda: stop.cluster.in_sync_replicas(TOPIC) == (1, 2), what="an ISR without broker 3")
        await write_more(stop)
        await stop.stop(1, 2)
        youngest = deepcopy(stop.world.zookeeper.tree)
        put_in(stop, older)
        await stop.start(3, 1, 2)
        await asyncio.sleep(15)
        assert sorted(process for process, _ in stop.world.crashes) == ["broker-1", "broker-2"]
        stop.world.crashes.clear()
        assert (stop.cluster.alive(), stop.cluster.leader(TOPIC)) == ([3], None)
        await stop.stop(3)
        put_in(stop, youngest)
        remove_file(stop, 3)  # which has counted changes of the older copy
        await stop.start(3, 1, 2)
        await stop.cluster.until(lambda: stop.cluster.in_sync_replicas(TOPIC) == (1, 2, 3), 60, "a full ISR")
        assert stop.ends() == dict.fromkeys((1, 2, 3), RECORDS + MORE_RECORDS)

    Stop().play(story)


def test_two_brokers_that_stopped_without_zookeeper_are_enough_for_an_election() -> None:
    async def story(stop: Stop) -> None:
        stop.world.zookeeper.stop()
        await stop.stop(1, 2, 3)
        stop.world.zookeeper.start()
        await stop.start(2, 3)
        await stop.cluster.until(lambda: stop.cluster.leader(TOPIC) in (2, 3), 60, "a leader")
        await stop.start(1)
        await stop.until_whole()

    Stop().play(story)
