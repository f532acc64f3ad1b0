"""A real cluster on simulated ports in which one fact is falsified from outside: the checker of
that fact reports it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication.producer_state import ProducerStates
from minibroker.broker.replication.state import Role
from minibroker.client.admin import AdminClient
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.producer import Producer
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import read_header
from minibroker.protocol.znodes import ConfigNode, PartitionState
from minibroker.runtime.ports import CreateOp, SetOp
from minibroker.simulation.checks.checker import checking
from minibroker.simulation.checks.disks.audited_disks import audit_disks
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.checks.replication.replicas import ReplicaChecker
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.storage import DirectoryNode, FileNode

FIRST = TopicPartition("a", 0)
TOPICS = {"a": (1, 3, 2)}
STATE = "/brokers/topics/a/partitions/0/state"


class Life:
    """A cluster with some records, and a falsification before one more."""

    def __init__(self) -> None:
        self.cluster = SimulatedCluster(1, settings={"auto.leader.rebalance.enable": "false"})
        self.reference = ReferenceState(self.cluster, TOPICS)
        self.acked: dict[tuple[TopicPartition, int], bytes] = {}

    def leader(self) -> Partition:
        number = self.cluster.leader("a")
        assert number is not None
        found = self.cluster.replica(number, "a")
        assert found is not None
        return found

    def follower(self) -> Partition:
        """A follower that is not the controller: falsifying that one would affect more than the partition."""
        others = [number for number in self.cluster.broker_ids if number != self.cluster.controller()]
        replicas = [self.cluster.replica(number, "a") for number in others]
        return next(each for each in replicas if each is not None and each.state.role is Role.FOLLOWER)

    def run(self, falsify: Callable[["Life"], Awaitable[None] | None]) -> list[str]:
        """The broken rules."""
        self.cluster.world.run(self._live(falsify), seconds_max=60)
        return [found.invariant for found in self.reference.findings]

    async def _live(self, falsify: Callable[["Life"], Awaitable[None] | None]) -> None:
        cluster, servers, ports = self.cluster, self.cluster.bootstrap_servers, self.cluster.client_runtime()
        with checking(cluster, self.reference, ReplicaChecker(cluster, self.reference, counts_only_synced=False)):
            cluster.start_all()
            await cluster.until_ready()
            async with AdminClient(bootstrap_servers=servers, runtime=ports) as admin:
                await admin.create_topic("a", partitions=1, replication_factor=3, configs={"min.insync.replicas": "2"})
            async with Producer(
                bootstrap_servers=servers, request_timeout_ms=500, delivery_timeout_ms=2_000, runtime=ports
            ) as producer:
                for number in range(20):
                    found = await producer.send_and_wait("a", b"%d" % number)
                    assert found.offset is not None
                    self.acked[FIRST, found.offset] = b"%d" % number
                await asyncio.sleep(1)
                lasting = falsify(self)
                if lasting is not None:
                    await lasting
                with contextlib.suppress(MinibrokerError):
                    await producer.send_and_wait("a", b"one more")


def change_nothing(life: Life) -> None:
    """The control case."""


def lower_the_high_watermark(life: Life) -> None:
    life.leader().state.high_watermark -= 1
    life.cluster.brokers[life.leader().state.config.broker_id].manager.fence()


def raise_a_followers_high_watermark(life: Life) -> None:
    state = life.follower().state
    state.log_end_offset += 1
    state.high_watermark += 1
    life.cluster.brokers[state.config.broker_id].manager.fence()


def cut_a_committed_record(life: Life) -> None:
    follower = life.follower()
    follower._cut(lambda: follower.log.truncate_to(5))


def forget_a_member(life: Life) -> None:
    """The leader ignores an ISR member, which no longer fetches."""
    state, follower = life.leader().state, life.follower().state
    life.cluster.world.pause(f"broker-{follower.config.broker_id}")
    state.in_sync_replicas = tuple(b for b in state.in_sync_replicas if b != follower.config.broker_id)
    del state.remotes[follower.config.broker_id]


def write_isr(life: Life, members: list[int], incarnations: dict[str, str]) -> None:
    tree = life.cluster.world.zookeeper.tree
    node = tree.nodes[STATE]
    state = PartitionState.decode(node.data)
    changed = PartitionState(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        controller_epoch=state.controller_epoch,
        isr=members,
        isr_incarnations={str(b): incarnations[str(b)] for b in members},
    )
    tree.transact([SetOp(path=STATE, data=changed.encode(), version=node.version)], 0)


def written_state(life: Life) -> PartitionState:
    return PartitionState.decode(life.cluster.world.zookeeper.tree.nodes[STATE].data)


def change_the_isr_by_hand(life: Life) -> None:
    state = written_state(life)
    fewer = [b for b in state.isr if b != life.follower().state.config.broker_id]
    write_isr(life, fewer, state.isr_incarnations)


async def let_a_failed_broker_join(life: Life, seconds_after_the_end: float) -> None:
    """A follower leaves the ISR, its session ends, and later it joins again."""
    zookeeper, state = life.cluster.world.zookeeper, written_state(life)
    change_the_isr_by_hand(life)
    gone = next(b for b in state.isr if b not in written_state(life).isr)
    controller = life.cluster.controller()
    assert gone != controller, "another controller would have to learn of it first"
    zookeeper.cut(f"broker-{gone}")
    for session_id in zookeeper.sessions_of(f"broker-{gone}"):
        zookeeper.expire_session(session_id)
    await asyncio.sleep(seconds_after_the_end)
    write_isr(life, state.isr, state.isr_incarnations)


def let_a_broker_join_long_after_its_failure(life: Life) -> Awaitable[None]:
    return let_a_failed_broker_join(life, 2.0)


def let_a_broker_join_right_after_its_failure(life: Life) -> Awaitable[None]:
    return let_a_failed_broker_join(life, 0.0)


def let_an_earlier_incarnation_join(life: Life) -> None:
    """Its session ends now, but the ISR lists another process than the one that was registered."""
    state = written_state(life)
    change_the_isr_by_hand(life)
    gone = next(b for b in state.isr if b not in written_state(life).isr)
    for session_id in life.cluster.world.zookeeper.sessions_of(f"broker-{gone}"):
        life.cluster.world.zookeeper.expire_session(session_id)
    write_isr(life, state.isr, {**state.isr_incarnations, str(gone): "0" * 32})


def write_as_an_old_controller(life: Life) -> None:
    tree = life.cluster.world.zookeeper.tree
    node = tree.nodes[STATE]
    state = PartitionState.decode(node.data)
    old = PartitionState(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        controller_epoch=state.controller_epoch - 1,
        isr=state.isr,
        isr_incarnations=state.isr_incarnations,
    )
    tree.transact([SetOp(path=STATE, data=old.encode(), version=node.version)], 0)


def forget_the_epochs(life: Life) -> None:
    follower = life.follower()
    follower.state.epoch_history.clear()
    follower._cut(lambda: follower.log.truncate_to(follower.log.log_end_offset - 1))


async def forget_the_producers(life: Life) -> None:
    """On both followers; one of them leads then."""
    leader = life.leader().state.config.broker_id
    for number in life.cluster.broker_ids:
        replica = life.cluster.replica(number, "a")
        assert replica is not None
        replica.log.producers = ProducerStates()
    life.cluster.stop(leader)
    await life.cluster.until(lambda: life.cluster.leader("a") not in (leader, None), 10, "another leader")


async def let_producers_expire(life: Life) -> None:
    """One broker forgets them for a while, and the setting is as before when producers are checked."""
    tree = life.cluster.world.zookeeper.tree
    node = ConfigNode(config={"producer.id.expiration.ms": "1000"}).encode()
    tree.transact([CreateOp(path="/config/brokers/1", data=node)], 0)
    tree.transact([SetOp(path="/config/brokers/1", data=ConfigNode(config={}).encode())], 0)
    await forget_the_producers(life)


def remove_the_registration(life: Life) -> None:
    number = life.leader().state.config.broker_id
    del life.cluster.world.zookeeper.tree.nodes[f"/brokers/ids/{number}"]


async def load_a_torn_batch(life: Life) -> None:
    """The broker claims a clean stop, but only the header of the last batch is on its disk."""
    before = life.follower()
    number, segment = before.state.config.broker_id, before.log.segments[-1]
    process = life.cluster.world.process(f"broker-{number}")
    life.cluster.stop(number)
    await life.cluster.until(lambda: not process.alive, 10, "a clean stop")
    life.cluster.world.machine(f"broker-{number}").storage.flip_bit(segment.log_path, segment.size - 1)
    life.cluster.start(number)
    await life.cluster.until(lambda: life.cluster.replica(number, "a") not in (before, None), 10, "a start")


def test_checkers_find_nothing_in_a_healthy_cluster() -> None:
    life = Life()
    assert life.run(change_nothing) == []
    assert audit_disks(life.cluster, life.reference.states(), life.acked) == []


@pytest.mark.parametrize(
    ("falsify", "rule"),
    [
        pytest.param(lower_the_high_watermark, "I11", marks=pytest.mark.invariant("I11")),
        pytest.param(raise_a_followers_high_watermark, "I22", marks=pytest.mark.invariant("I22")),
        pytest.param(cut_a_committed_record, "I32", marks=pytest.mark.invariant("I32")),
        pytest.param(forget_a_member, "I4", marks=pytest.mark.invariant("I4", "I3")),
        pytest.param(change_the_isr_by_hand, "I8", marks=pytest.mark.invariant("I8")),
        pytest.param(let_a_broker_join_long_after_its_failure, "I34", marks=pytest.mark.invariant("I34")),
        pytest.param(let_an_earlier_incarnation_join, "I34", marks=pytest.mark.invariant("I34")),
        pytest.param(write_as_an_old_controller, "I30", marks=pytest.mark.invariant("I27", "I30")),
        pytest.param(forget_the_epochs, "I13", marks=pytest.mark.invariant("I13")),
        pytest.param(forget_the_producers, "I25", marks=pytest.mark.invariant("I25")),
        pytest.param(remove_the_registration, "I29", marks=pytest.mark.invariant("I29")),
        pytest.param(load_a_torn_batch, "I12", marks=pytest.mark.invariant("I12")),
    ],
)
@pytest.mark.expects_loop_errors
def test_a_falsified_fact_is_found_by_its_rule(falsify: Callable[[Life], Awaitable[None] | None], rule: str) -> None:
    life = Life()
    with contextlib.suppress(AssertionError):  # the broker may have failed because of it, too
        life.run(falsify)
    assert rule in {found.invariant for found in life.reference.findings}, life.reference.findings


@pytest.mark.expects_loop_errors
def test_a_failed_broker_may_join_before_the_controller_knows_of_its_failure() -> None:
    life = Life()
    with contextlib.suppress(AssertionError):
        life.run(let_a_broker_join_right_after_its_failure)
    rules = {found.invariant for found in life.reference.findings}
    assert "I8" in rules and "I34" not in rules, life.reference.findings


@pytest.mark.invariant("I25")
def test_producers_may_be_forgotten_where_they_expired_for_a_while() -> None:
    assert Life().run(let_producers_expire) == []


def test_bit_rot_and_a_lost_record_are_found_on_the_disks() -> None:
    life = Life()
    life.run(change_nothing)
    entries = life.cluster.world.machine("broker-2").storage.root.entries
    for name in ("data", "log", "a-0"):
        directory = entries[name]
        assert isinstance(directory, DirectoryNode)
        entries = directory.entries
    segment = next(node for name, node in entries.items() if name.endswith(".log"))
    assert isinstance(segment, FileNode)
    segment.content[read_header(segment.content).size_bytes - 1] ^= 1
    life.acked[FIRST, 10_000] = b"never written"
    rules = {found.invariant for found in audit_disks(life.cluster, life.reference.states(), life.acked)}
    assert {"audit:corrupt-batch", "audit:acked-missing"} <= rules
