"""A whole cluster stops, by any way, and starts in any order, with a disk replaced in between."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.descriptions import NewTopic
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.events.controller_events import PartitionsWithoutLeader
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    ElectionPreview,
    ElectLeadersRequest,
    ElectLeadersResponse,
    confirmation_of,
)
from minibroker.protocol.znodes import PartitionState
from minibroker.runtime.rpc import connect
from minibroker.simulation.cluster import PORT, SimulatedCluster
from minibroker.simulation.swarm.faults.rot_places import batches_of

TOPIC = "t"
RECORDS = 100
SESSION_MS = 3_000

Story = Callable[["Stop"], Awaitable[None]]


class Stop:
    """Three brokers, one partition with all of them in sync, a hundred acknowledged records."""

    def __init__(self, seed: int = 1, settings: dict[str, str] | None = None) -> None:
        self.cluster = SimulatedCluster(seed, 3, {"zookeeper.session.timeout.ms": str(SESSION_MS), **(settings or {})})
        self.world = self.cluster.world

    def play(self, story: Story) -> None:
        self.world.run(self._play(story), seconds_max=300)

    async def _play(self, story: Story) -> None:
        cluster, runtime = self.cluster, self.cluster.client_runtime()
        cluster.start_all()
        await cluster.until_ready()
        async with AdminClient(bootstrap_servers=cluster.bootstrap_servers, runtime=runtime) as admin:
            await admin.create_topics([NewTopic(name=TOPIC, assignment={0: [1, 2, 3]})])
        async with Producer(bootstrap_servers=cluster.bootstrap_servers, runtime=runtime) as producer:
            for number in range(RECORDS):
                await producer.send(TOPIC, b"%d" % number)
            await producer.flush()
        await cluster.until(lambda: self.ends() == {1: RECORDS, 2: RECORDS, 3: RECORDS}, what="records on all replicas")
        await story(self)

    # ------------------------------------------------------------------------------------------------------ queries
    def state(self) -> PartitionState:
        """The state in ZooKeeper."""
        state = self.cluster.partition_state(TopicPartition(TOPIC, 0))
        assert state is not None
        return state

    def ends(self) -> dict[int, int]:
        """Log end offsets of living replicas."""
        replicas = {each: self.cluster.replica(each, TOPIC) for each in self.cluster.alive()}
        return {each: replica.state.log_end_offset for each, replica in replicas.items() if replica is not None}

    # ------------------------------------------------------------------------------------------------------- actions
    async def stop(self, *broker_ids: int) -> None:
        """Stop brokers one after the other, each until its process has ended."""
        for broker_id in broker_ids:
            self.cluster.stop(broker_id)
            await self.cluster.until(lambda b=broker_id: b not in self.cluster.alive(), what=f"the end of {broker_id}")  # type: ignore[misc]

    def kill(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.cluster.kill(broker_id)

    def replace_disk(self, broker_id: int) -> None:
        """Put in a blank disk."""
        storage = self.world.machine(f"broker-{broker_id}").storage
        storage.wipe()
        storage.provision("/data")

    def shorten(self, broker_id: int, share: float) -> None:
        """Keep only this share of its log, in whole batches."""
        storage = self.world.machine(f"broker-{broker_id}").storage
        node = storage.find_file(f"/data/log/{TOPIC}-0/{0:020d}.log")
        ends = [*(position for position, _ in batches_of(node.content)), len(node.content)]
        del node.content[ends[round(share * (len(ends) - 1))] :]

    async def start(self, *broker_ids: int, pause_seconds: float = 0.0) -> None:
        for broker_id in broker_ids:
            self.cluster.start(broker_id)
            await asyncio.sleep(pause_seconds)

    async def elections(self, request: ElectLeadersRequest) -> list[ElectionPreview]:
        """Send the controller an operator's request."""
        network, controller = self.cluster.client_runtime().network, self.cluster.controller()
        connection = await connect(network, f"broker-{controller}", PORT, client_id="me", timeout_ms=1_000)
        response = await connection.request(request, 10_000)
        connection.abort()
        assert isinstance(response, ElectLeadersResponse)
        return response.partitions

    async def until_whole(self) -> None:
        """Wait until all replicas are in sync with all records."""
        await self.cluster.until(lambda: self.cluster.in_sync_replicas(TOPIC) == (1, 2, 3), 60, "a full ISR")
        assert self.ends() == {1: RECORDS, 2: RECORDS, 3: RECORDS}

    async def until_refused(self) -> None:
        """There is no leader, and writes fail in time; no replica has lost a record."""
        await asyncio.sleep(3 * SESSION_MS / 1000)
        assert self.cluster.leader(TOPIC) is None
        servers, runtime = self.cluster.bootstrap_servers, self.cluster.client_runtime()
        with pytest.raises(MinibrokerError):
            async with Producer(bootstrap_servers=servers, delivery_timeout_ms=5_000, runtime=runtime) as producer:
                await producer.send_and_wait(TOPIC, b"value")


@pytest.mark.parametrize("order", [(3, 1, 2), (1, 3, 2), (1, 2, 3)])
def test_replaced_disk_of_the_last_broker_to_stop_is_not_elected(order: tuple[int, ...]) -> None:
    async def story(stop: Stop) -> None:
        await stop.stop(1, 2, 3)
        assert stop.state().isr == [3]
        stop.replace_disk(3)
        await stop.start(*order, pause_seconds=1.0)
        await stop.until_refused()
        assert {each: end for each, end in stop.ends().items() if each != 3} == {1: RECORDS, 2: RECORDS}

    Stop().play(story)


def test_operator_elects_despite_the_loss_after_the_last_members_disk_was_replaced() -> None:
    async def story(stop: Stop) -> None:
        await stop.stop(1, 2, 3)
        stop.replace_disk(3)
        await stop.start(1, 2, 3, pause_seconds=1.0)
        await asyncio.sleep(2)
        (preview,) = await stop.elections(ElectLeadersRequest())
        assert (preview.error_code, preview.isr, preview.waits_for, preview.chosen) == (0, [3], [], 1)
        assert "broker 3 has another log directory now" in preview.reason
        assert [each.log_end_offset for each in preview.candidates] == [RECORDS, RECORDS, 0]
        assert stop.cluster.leader(TOPIC) is None, "a query elects no leader"
        (elected,) = await stop.elections(ElectLeadersRequest(confirmed=[confirmation_of(preview)]))
        assert (elected.error_code, elected.chosen) == (0, 1)
        await stop.until_whole()
        assert await stop.elections(ElectLeadersRequest()) == []

    Stop().play(story)


def test_operators_order_elects_the_named_replica_or_none() -> None:
    """The preview names the replica with all records; it goes away before the order comes, and the one with few must
    not lead."""

    async def story(stop: Stop) -> None:
        await stop.stop(3, 2, 1)
        stop.replace_disk(1)
        stop.shorten(3, 0.5)
        await stop.start(1, 2, 3, pause_seconds=1.0)
        await asyncio.sleep(2)
        (preview,) = await stop.elections(ElectLeadersRequest())
        assert (preview.chosen, [each.broker_id for each in preview.candidates]) == (2, [1, 2, 3])
        order = ElectLeadersRequest(confirmed=[confirmation_of(preview)])
        await stop.stop(2)
        await asyncio.sleep(1)
        (refused,) = await stop.elections(order)
        assert refused.error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        assert "t-0 has changed since it was shown to you: broker 2 is not registered" in str(refused.error_message)
        assert (refused.chosen, stop.state().leader) == (-1, -1)
        await stop.start(2, pause_seconds=2.0)
        (elected,) = await stop.elections(order)
        assert (elected.error_code, elected.chosen) == (0, 2)
        await stop.until_whole()

    Stop().play(story)


@pytest.mark.parametrize("pause_seconds", [0.0, 1.0, 5.0])
def test_replaced_disk_that_starts_first_after_all_were_killed_is_not_elected(pause_seconds: float) -> None:
    async def story(stop: Stop) -> None:
        stop.kill(1, 2, 3)
        stop.replace_disk(1)
        await stop.start(1, pause_seconds=pause_seconds)
        await stop.start(2, 3)
        await stop.until_whole()

    Stop().play(story)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
@pytest.mark.parametrize("pause_seconds", [0.0, 1.0, 5.0])
def test_all_that_stopped_cleanly_are_whole_again_in_any_order(order: tuple[int, ...], pause_seconds: float) -> None:
    async def story(stop: Stop) -> None:
        await stop.stop(1, 2, 3)
        await stop.start(*order, pause_seconds=pause_seconds)
        await stop.until_whole()

    Stop().play(story)


async def lose_all_but(stop: Stop, broker_id: int) -> None:
    """All lose power, and one machine had synced its records."""
    replica = stop.cluster.replica(broker_id, TOPIC)
    assert replica is not None
    await stop.world.spawn(f"broker-{broker_id}", replica.log.flush())
    for each in stop.cluster.broker_ids:
        stop.world.power_loss(f"broker-{each}", tear=False)


@pytest.mark.parametrize("order", [(1, 3, 2), (3, 2, 1), (2, 1, 3)])
@pytest.mark.parametrize("pause_seconds", [0.0, 1.0, 8.0])
def test_largest_log_leads_after_a_power_cut_of_all(order: tuple[int, ...], pause_seconds: float) -> None:
    async def story(stop: Stop) -> None:
        await lose_all_but(stop, 2)
        await stop.start(*order, pause_seconds=pause_seconds)
        await stop.until_whole()

    Stop().play(story)


def test_a_power_cut_of_all_waits_for_the_last_member() -> None:
    events: list[object] = []

    async def story(stop: Stop) -> None:
        await lose_all_but(stop, 2)
        await stop.start(1, 3)
        await stop.until_refused()
        waits = [each for each in events if isinstance(each, PartitionsWithoutLeader)]
        assert ("t-0", "waiting for brokers [2]: broker 2 is not registered") in [(w.first, w.reason) for w in waits]
        await stop.start(2)
        await stop.until_whole()

    stop = Stop()
    with stop.world.observers.subscribed(events.append):
        stop.play(story)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
@pytest.mark.parametrize("pause_seconds", [0.0, 1.0, 8.0])
def test_two_killed_processes_need_not_wait_for_the_third(order: tuple[int, ...], pause_seconds: float) -> None:
    async def story(stop: Stop) -> None:
        stop.kill(1, 2, 3)
        await stop.start(order[0], pause_seconds=pause_seconds)
        assert stop.cluster.leader(TOPIC) is None
        await stop.start(order[1])
        await stop.cluster.until(lambda: stop.cluster.leader(TOPIC) in order[:2], 10, "a leader without the third")
        await stop.start(order[2])
        await stop.until_whole()

    Stop().play(story)


@pytest.mark.invariant("I21")
@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("order", [(1, 2, 3), (2, 1, 3), (3, 2, 1)])
def test_a_killed_member_whose_log_is_shorter_since_does_not_cut_the_others(
    order: tuple[int, ...], share: float
) -> None:
    """Whole batches are gone from its end, no checkpoint was written yet, and nothing on its disk shows it (D02e)."""

    async def story(stop: Stop) -> None:
        stop.kill(1, 2, 3)
        stop.shorten(1, share)
        await stop.start(*order, pause_seconds=8.0)
        await stop.until_whole()

    Stop().play(story)


@pytest.mark.invariant("I28")
def test_the_only_member_whose_partition_is_gone_never_leads_however_often_it_starts() -> None:
    async def story(stop: Stop) -> None:
        await asyncio.sleep(6)
        await stop.stop(3, 2)
        stop.kill(1)
        stop.world.runtime("broker-1").disk.remove_tree(f"/data/log/{TOPIC}-0")
        stop.kill(1)
        for _ in range(3):
            await stop.start(1, 2, 3, pause_seconds=4.0)
            assert stop.cluster.leader(TOPIC) is None
            stop.kill(1)
            await stop.stop(2, 3)
        assert stop.state().isr == [1]

    Stop().play(story)


@pytest.mark.invariant("I28")
def test_the_only_member_does_not_lead_with_less_than_the_others_know_to_be_committed() -> None:
    """Its last records are gone, no checkpoint mentions them, and the other replicas run outside the ISR (D17c)."""

    async def story(stop: Stop) -> None:
        await stop.stop(3, 2)
        assert stop.state().isr == [1]
        stop.kill(1)
        stop.shorten(1, 0.5)
        await stop.start(2, 3, 1, pause_seconds=4.0)
        await stop.until_refused()
        assert stop.ends()[1] < RECORDS == stop.ends()[2] == stop.ends()[3]
        (preview,) = await stop.elections(ElectLeadersRequest())
        assert "has lost records" in preview.reason
        await stop.elections(ElectLeadersRequest(confirmed=[confirmation_of(preview)]))
        await stop.until_whole()

    Stop().play(story)


@pytest.mark.invariant("I28")
def test_a_start_that_dies_before_its_first_check_does_not_hide_a_power_cut() -> None:
    """The new boot id is written after the removal of `whole-since` (D20)."""

    async def story(stop: Stop) -> None:
        stop.cluster.power_loss(1)
        stop.kill(2, 3)
        stop.world.machine("broker-1").storage.fail("remove")
        stop.cluster.start(1)
        await asyncio.sleep(1)
        assert "whole-since" in str(stop.world.crashes.pop())
        stop.world.machine("broker-1").storage.heal()
        await stop.start(1, pause_seconds=8.0)
        assert stop.cluster.leader(TOPIC) is None
        await stop.start(2, 3)
        await stop.until_whole()

    Stop().play(story)


def test_a_killed_member_whose_partition_is_gone_from_its_disk_does_not_lead() -> None:
    async def story(stop: Stop) -> None:
        await asyncio.sleep(6)  # a checkpoint now names the partition
        stop.kill(1, 2, 3)
        stop.world.runtime("broker-1").disk.remove_tree(f"/data/log/{TOPIC}-0")
        stop.kill(1)
        await stop.start(1, pause_seconds=8.0)
        await stop.start(2, 3)
        await stop.until_whole()

    Stop().play(story)
