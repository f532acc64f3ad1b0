"""The launcher, and the faults that a cluster of real processes survives."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.producer.producer import Producer
from minibroker.local_cluster.broker_names import resolve
from minibroker.local_cluster.cluster_file import STATE_FILE, ClusterFailed
from minibroker.local_cluster.cluster_snapshot import ask_zookeeper
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.observation.cluster_view import ClusterView
from minibroker.protocol.ids import TopicPartition
from tests.system.conftest import CommandLine

pytestmark = pytest.mark.system

PARTITION = TopicPartition("t", 0)
SESSION_AND_ELECTION_S = 3.0 + 2.5


async def create_topic(cluster: LocalCluster, partitions: int = 1) -> None:
    async with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topic(PARTITION.topic, partitions=partitions)


async def read_all(cluster: LocalCluster, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    async with Consumer("t", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        while len(values) < count:
            values.append((await consumer.getone(timeout_ms=10_000)).value)
    return values


async def new_leader(cluster: LocalCluster, old_epoch: int) -> ClusterView:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        view = await cluster.look()
        state = view.partitions.get(PARTITION)
        if state is not None and state.leader_epoch > old_epoch and state.leader_id >= 0:
            return view
    raise AssertionError("no new leader")


async def test_writes_continue_after_a_killed_leader(own_cluster: LocalCluster) -> None:
    await create_topic(own_cluster)
    leader = await resolve(own_cluster, "leader:t-0")
    async with Producer(bootstrap_servers=own_cluster.bootstrap_servers) as producer:
        await producer.send_and_wait("t", b"before")
        await own_cluster.kill(leader)
        started = time.monotonic()
        metadata = await producer.send_and_wait("t", b"after")
        assert time.monotonic() - started < SESSION_AND_ELECTION_S
    assert (metadata.offset, metadata.leader_epoch) == (1, 1)
    assert await resolve(own_cluster, "leader:t-0") != leader
    assert await read_all(own_cluster, 2) == [b"before", b"after"]
    await own_cluster.start(leader)
    view = await own_cluster.wait_healthy(30)
    assert sorted(view.partitions[PARTITION].isr_nodes) == [1, 2, 3]


@pytest.mark.invariant("I3")
async def test_leader_that_lost_its_unsynced_tail_is_replaced(own_cluster: LocalCluster) -> None:
    await create_topic(own_cluster)
    values = [b"%d" % number for number in range(100)]
    async with Producer(bootstrap_servers=own_cluster.bootstrap_servers) as producer:
        for value in values:
            await producer.send("t", value)
    leader = await resolve(own_cluster, "leader:t-0")
    (cut,) = await own_cluster.lose_power(leader)
    assert cut.bytes_lost > 0
    await own_cluster.start(leader)
    view = await new_leader(own_cluster, 0)
    assert view.partitions[PARTITION].leader_id != leader
    assert await read_all(own_cluster, 100) == values
    await own_cluster.wait_healthy(30)


async def test_clean_stop_hands_leadership_over_at_once(own_cluster: LocalCluster) -> None:
    await create_topic(own_cluster)
    leader = await resolve(own_cluster, "leader:t-0")
    await own_cluster.stop(leader)
    view = await own_cluster.look()
    assert view.partitions[PARTITION].leader_id not in (-1, leader)
    with pytest.raises(ClusterFailed, match=f"broker {leader} does not run"):
        await own_cluster.kill(leader)


async def test_paused_leader_is_replaced_and_returns_as_follower(tmp_path: Path) -> None:
    settings = {"auto.leader.rebalance.enable": "false"}  # or a slow machine sees it lead again
    async with LocalCluster(tmp_path / "data", settings=settings) as cluster:
        await create_topic(cluster)
        leader = await resolve(cluster, "leader:t-0")
        await cluster.pause(leader)
        assert cluster.process_state(leader) == "paused"
        async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            metadata = await producer.send_and_wait("t", b"a")
        assert metadata.leader_epoch == 1
        await cluster.resume(leader)
        view = await cluster.wait_healthy(30)
        assert view.partitions[PARTITION].leader_id != leader


async def is_noted(cluster: LocalCluster) -> None:
    """Wait until the witness covers the one record: a leader elected while the cluster stops may not write it."""
    async with asyncio.timeout(30):
        while True:
            state = await ask_zookeeper(cluster.record.zookeeper.connect, brokers_told=True)
            if state is not None and any(each.committed_offset == 1 for each in state.witnesses.values()):
                return
            await asyncio.sleep(0.2)


async def test_data_survives_down_and_up(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path / "data", settings={"witness.interval.ms": "1000"}) as own_cluster:
        await create_topic(own_cluster)
        async with Producer(bootstrap_servers=own_cluster.bootstrap_servers) as producer:
            await producer.send_and_wait("t", b"kept")
        await is_noted(own_cluster)
        assert await own_cluster.down() == []
        state = json.loads((own_cluster.data_directory / STATE_FILE).read_bytes())
        assert state["version"] == 2
        partition = state["partitions"]["t-0"]
        assert sorted(partition["isr_before"]) == sorted(partition["replicas"]) == [1, 2, 3]
        assert partition["committed_before"] == 1
        assert partition["topic_id"]
        assert sorted(state["brokers"]) == ["1", "2", "3"]
        assert all(state["brokers"].values()), "log directory ids"
        witness = state["witnesses"]["t-0"]
        assert (witness["committed_offset"], len(witness["digest"])) == (1, 32)
        again = LocalCluster.open(own_cluster.data_directory)
        await again.up()
        try:
            assert await read_all(again, 1) == [b"kept"]
            assert not (again.data_directory / STATE_FILE).exists()
        finally:
            await again.down()


async def test_second_up_in_the_same_directory_is_refused(own_cluster: LocalCluster) -> None:
    with pytest.raises(ClusterFailed, match="a cluster already runs in"):
        await LocalCluster(own_cluster.data_directory).up()


async def test_broker_that_cannot_start_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, 1, settings={"log.segment.bytes": "soon"})
    with pytest.raises(ClusterFailed, match=r"broker 1 has ended by itself: .*log\.segment\.bytes"):
        await cluster.up()
    assert not cluster.is_running()


def test_command_line_kills_restarts_and_audits_a_cluster(own_cluster: LocalCluster, tmp_path: Path) -> None:
    minibroker = CommandLine(own_cluster)
    minibroker.run("topic", "create", "-t", "t", "--partitions", "1")
    report = tmp_path / "acknowledged"
    minibroker.run("produce", "-t", "t", "--report", report, stdin=b"a\nb\n")
    killed = json.loads(minibroker.run("cluster", "kill", "leader:t-0", "--json"))["broker"]
    unhealthy = json.loads(minibroker.run("cluster", "status", "--json", code=10))
    assert (unhealthy["brokers"][str(killed)]["state"], unhealthy["brokers"][str(killed)]["pid"]) == ("down", None)
    minibroker.run("produce", "-t", "t", stdin=b"c\n")
    minibroker.run("cluster", "start", str(killed))
    minibroker.run("cluster", "wait", "--brokers", "3")
    minibroker.run("cluster", "stop", "controller")
    assert minibroker.run("consume", "-t", "t", "-e") == b"a\nb\nc\n"
    minibroker.run("cluster", "down")
    audit = json.loads(
        minibroker.run("audit", own_cluster.data_directory, "--engine", "local", "--acked", report, "--json")
    )
    assert audit["statistics"]["acked_in_place"] == 2
    minibroker.run("cluster", "down", "--wipe")
    assert not own_cluster.data_directory.exists()


def test_wait_times_out_with_the_reason(own_cluster: LocalCluster) -> None:
    run = CommandLine(own_cluster).complete("cluster", "wait", "--brokers", "4", "--timeout", "1")
    assert run.returncode == 1
    assert b"3 of 4 brokers are registered: [1, 2, 3]" in run.stderr
