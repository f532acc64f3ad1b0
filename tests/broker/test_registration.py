"""A broker's registration in a simulated ZooKeeper: starts, restarts, outages, other brokers."""

import asyncio
import random

import pytest

from minibroker.broker.membership.registration import (
    BrokerIdentity,
    BrokerIdTaken,
    ClusterMismatch,
    Registration,
    ZooKeeperUnreachable,
    draw_id,
)
from minibroker.broker.membership.zookeeper_session import PATIENCE_SECONDS, open_session
from minibroker.protocol.events.broker_events import NodeUnreadable, RegistrationReplaced
from minibroker.protocol.wire.messages import BrokerEndpoint
from minibroker.protocol.znodes import CLUSTER_ID, CONTROLLER, PERSISTENT_PATHS, BrokerRegistration, broker_path
from minibroker.runtime.observer import Observers
from minibroker.runtime.ports import Coordination
from minibroker.simulation.world.node import Process
from tests.broker.virtual_zookeeper import SESSION_MS, World, run

ENDPOINTS = [
    BrokerEndpoint(listener="IN", host="one", port=9092),
    BrokerEndpoint(listener="OUT", host="localhost", port=9093),
]
PATH = broker_path(1)


class Broker:
    """One broker process, as far as ZooKeeper sees it."""

    def __init__(self, world: World, name: str, coordination: Coordination, identity: BrokerIdentity) -> None:
        self.world = world
        self.name = name
        self.coordination = coordination
        self.events: list[str] = []
        self.reported: list[object] = []
        self.registration = Registration(
            coordination,
            world.clock,
            identity,
            world.random,
            Observers(self.reported.append),
            on_registered=lambda epoch: self.events.append("registered"),
            on_epoch_ended=lambda: self.events.append("lost"),
            on_fenced=lambda: self.events.append("fenced"),
        )
        self.keeping: asyncio.Task[None] | None = None


async def open_broker(
    world: World, process: Process, directory: str = "dir", cluster_id: str | None = None, timeout_ms: int = SESSION_MS
) -> Broker:
    coordination = await world.connect(process, timeout_ms)
    identity = BrokerIdentity(
        broker_id=1, directory_id=directory, incarnation_id=draw_id(world.random), cluster_id=cluster_id
    )
    return Broker(world, process.name, coordination, identity)


async def start_broker(world: World, process: Process, directory: str = "dir") -> Broker:
    broker = await open_broker(world, process, directory)
    await world.inside(process, broker.registration.prepare(10_000))
    await world.inside(process, broker.registration.register(ENDPOINTS, 10_000))
    broker.keeping = world.loop.create_task(broker.registration.run(), context=process.context)
    return broker


async def registered(observer: Coordination) -> BrokerRegistration:
    content, _ = await observer.get(PATH)
    return BrokerRegistration.decode(content)


# starting


def test_first_broker_creates_the_permanent_nodes_and_the_cluster() -> None:
    async def story(world: World) -> None:
        broker = await open_broker(world, world.process("one"))
        cluster_id = await broker.registration.prepare(1000)
        for path in (*PERSISTENT_PATHS, CLUSTER_ID):
            assert await broker.coordination.exists(path) is not None
        second = await open_broker(world, world.process("two"), cluster_id=cluster_id)
        assert await second.registration.prepare(1000) == cluster_id

    run(story)


def test_broker_epoch_is_the_czxid_of_its_node() -> None:
    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        stat = await broker.coordination.exists(PATH)
        assert stat is not None
        assert stat.czxid == broker.registration.broker_epoch
        assert stat.ephemeral_owner == broker.coordination.session_id
        assert not broker.registration.is_fenced()
        assert broker.events == ["registered"]

    run(story)


def test_the_registration_holds_the_endpoints_and_the_incarnation() -> None:
    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"), directory="d1")
        node = await registered(await world.observer())
        assert node.listeners() == {"IN": ("one", 9092), "OUT": ("localhost", 9093)}
        assert node.listener_security_protocol_map == {"IN": "PLAINTEXT", "OUT": "PLAINTEXT"}
        assert (node.directory_id, node.incarnation_id) == ("d1", broker.registration.incarnation_id)
        assert node.cluster_id == broker.registration.cluster_id

    run(story)


def test_unregistered_broker_is_fenced() -> None:
    async def story(world: World) -> None:
        broker = await open_broker(world, world.process("one"))
        assert broker.registration.is_fenced()
        assert broker.registration.broker_epoch is None

    run(story)


@pytest.mark.parametrize("write", range(1, 16))
def test_the_start_succeeds_when_the_answer_to_a_write_is_lost(write: int) -> None:
    """For each write of the start in turn: it takes effect, but its answer is lost."""

    async def story(world: World) -> None:
        process = world.process("one")
        broker = await open_broker(world, process)
        seen = 0

        def lose(line: str) -> None:
            nonlocal seen
            if " zk-write one " in line:
                seen += 1
                if seen == write:
                    world.zookeeper.lose_next_reply("one")

        world.zookeeper.trace.listeners.append(lose)
        await world.inside(process, broker.registration.prepare(10_000))
        epoch = await world.inside(process, broker.registration.register(ENDPOINTS, 10_000))
        stat = await broker.coordination.exists(PATH)
        assert stat is not None
        assert stat.czxid == epoch
        assert broker.events == ["registered"]

    run(story)


# another cluster


def test_directory_of_another_cluster_is_refused() -> None:
    async def story(world: World) -> None:
        await start_broker(world, world.process("one"))
        stranger = await open_broker(world, world.process("two"), cluster_id="elsewhere")
        with pytest.raises(
            ClusterMismatch, match=r"belongs to cluster elsewhere, ZooKeeper knows .*zookeeper\.connect"
        ):
            await stranger.registration.prepare(1000)

    run(story)


def test_wiped_zookeeper_is_refused_and_left_empty() -> None:
    async def story(world: World) -> None:
        broker = await open_broker(world, world.process("one"), cluster_id="known")
        with pytest.raises(ClusterMismatch, match="its data was wiped"):
            await broker.registration.prepare(1000)
        assert await broker.coordination.exists(CLUSTER_ID) is None

    run(story)


def test_unreadable_cluster_id_is_refused() -> None:
    async def story(world: World) -> None:
        broker = await open_broker(world, world.process("one"))
        await broker.coordination.create(CLUSTER_ID, b"\xff", make_parents=True)
        with pytest.raises(ClusterMismatch, match="cannot be read"):
            await broker.registration.prepare(1000)

    run(story)


# coming back


def test_restarted_broker_replaces_its_predecessor_within_its_session() -> None:
    async def story(world: World) -> None:
        first_process = world.process("one")
        first = await start_broker(world, first_process)
        first_process.kill()
        began = world.loop.time()
        second = await start_broker(world, world.process("one-again"))
        assert world.loop.time() - began < 0.2
        assert second.registration.broker_epoch is not None
        assert first.registration.broker_epoch is not None
        assert second.registration.broker_epoch > first.registration.broker_epoch
        node = await registered(second.coordination)
        assert node.incarnation_id == second.registration.incarnation_id != first.registration.incarnation_id
        assert RegistrationReplaced(broker=1) in second.reported

    run(story)


def test_a_controller_node_of_the_dead_session_is_removed_with_the_registration() -> None:
    async def story(world: World) -> None:
        first_process = world.process("one")
        first = await start_broker(world, first_process)
        await world.inside(first_process, first.coordination.create(CONTROLLER, b"{}", ephemeral=True))
        first_process.kill()
        second = await start_broker(world, world.process("one-again"))
        assert await second.coordination.exists(CONTROLLER) is None

    run(story)


def test_a_controller_node_of_another_session_stays() -> None:
    async def story(world: World) -> None:
        observer = await world.observer()
        await observer.create(CONTROLLER, b"{}", ephemeral=True)
        first_process = world.process("one")
        await start_broker(world, first_process)
        first_process.kill()
        await start_broker(world, world.process("one-again"))
        stat = await observer.exists(CONTROLLER)
        assert stat is not None
        assert stat.ephemeral_owner == observer.session_id

    run(story)


def test_broker_with_a_wiped_disk_waits_for_its_predecessors_session() -> None:
    async def story(world: World) -> None:
        first_process = world.process("one")
        await start_broker(world, first_process, directory="old-disk")
        first_process.kill()
        second = await start_broker(world, world.process("one-again"), directory="new-disk")
        assert not second.registration.is_fenced()
        assert (await registered(second.coordination)).directory_id == "new-disk"

    run(story)


# other brokers under our id


def test_id_of_a_living_broker_is_refused_after_one_session() -> None:
    async def story(world: World) -> None:
        first = await start_broker(world, world.process("one"), directory="d1")
        began = world.loop.time()
        second = await open_broker(world, world.process("two"), directory="d2")
        await second.registration.prepare(1000)
        with pytest.raises(BrokerIdTaken, match=r"broker id 1 is in use.*IN://one:9092.*its own broker\.id") as ended:
            await second.registration.register(ENDPOINTS, 1000)
        assert not ended.value.is_replaced, "a later start may find the id free"
        assert SESSION_MS / 1000 < world.loop.time() - began < 1.5 * SESSION_MS / 1000
        assert first.events == ["registered"]
        assert not first.registration.is_fenced()

    run(story)


def test_unreadable_node_under_our_id_counts_as_another_broker() -> None:
    async def story(world: World) -> None:
        observer = await world.observer()
        await observer.create(PATH, b"garbage", make_parents=True)
        broker = await open_broker(world, world.process("one"))
        with pytest.raises(BrokerIdTaken, match="not readable"):
            await broker.registration.register(ENDPOINTS, 1000)
        found = [each for each in broker.reported if isinstance(each, NodeUnreadable)]
        assert {each.path for each in found} == {PATH}

    run(story)


def test_broker_replaced_by_a_copy_of_itself_stops_serving_and_gives_up() -> None:
    async def story(world: World) -> None:
        first = await start_broker(world, world.process("one"), directory="d1")
        second = await start_broker(world, world.process("copy"), directory="d1")
        await asyncio.sleep(0.1)
        assert first.registration.is_fenced()
        assert first.events == ["registered", "lost"]
        assert first.keeping is not None
        with pytest.raises(BrokerIdTaken, match="taken over by another process"):
            await first.keeping
        assert second.events == ["registered"]
        assert not second.registration.is_fenced()

    run(story)


# outages


def test_a_deleted_registration_is_created_again_under_a_new_epoch() -> None:
    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        epoch = broker.registration.broker_epoch
        assert epoch is not None
        await (await world.observer()).delete(PATH)
        await asyncio.sleep(0.1)
        assert broker.events == ["registered", "lost", "registered"]
        assert broker.registration.broker_epoch is not None
        assert broker.registration.broker_epoch > epoch

    run(story)


def test_a_removal_observed_by_another_reader_fences_the_broker_at_once() -> None:
    """Seed 911627: a controller read that its own broker's node is gone, 42 ms before the broker's own watch fired."""

    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        await (await world.observer()).delete(PATH)
        broker.registration._attention.clear()
        broker.registration.observe_removal()
        assert broker.registration._attention.is_set(), "it registers again, whenever its own watch fires"
        assert broker.registration.is_fenced()
        assert broker.events == ["registered", "lost"]
        await asyncio.sleep(0.1)
        assert broker.events == ["registered", "lost", "registered"]

    run(story)


def test_expired_session_is_followed_by_a_new_registration_of_the_same_incarnation() -> None:
    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        epoch = broker.registration.broker_epoch
        assert epoch is not None
        world.zookeeper.expire_session(broker.coordination.session_id)
        await asyncio.sleep(2)
        assert broker.events == ["registered", "lost", "registered"]
        node = await registered(broker.coordination)
        assert node.incarnation_id == broker.registration.incarnation_id
        assert broker.registration.broker_epoch is not None
        assert broker.registration.broker_epoch > epoch

    run(story)


def test_short_outage_changes_nothing() -> None:
    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        epoch = broker.registration.broker_epoch
        world.zookeeper.drop_connection("one")
        await asyncio.sleep(5)
        assert broker.registration.broker_epoch == epoch
        assert broker.events == ["registered"]
        assert not broker.registration.is_fenced()

    run(story)


def test_broker_fences_itself_when_zookeeper_has_been_silent_for_a_session() -> None:
    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        await asyncio.sleep(1)
        world.zookeeper.cut("one")
        began = world.loop.time()
        for _ in range(SESSION_MS // 10):
            if broker.registration.is_fenced():
                break
            await asyncio.sleep(0.01)
        assert broker.registration.is_fenced()
        assert world.loop.time() - began <= SESSION_MS / 1000
        observer = await world.observer()
        assert await observer.exists(PATH) is not None, "fenced before ZooKeeper's own clock ran out"
        await asyncio.sleep(0.3)
        assert broker.events == ["registered", "fenced"]

    run(story)


def test_broker_recovers_by_itself_after_a_long_outage() -> None:
    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        world.zookeeper.cut("one")
        await asyncio.sleep(10)
        assert broker.registration.is_fenced()
        world.zookeeper.heal("one")
        await asyncio.sleep(5)
        world.zookeeper.cut("one")
        await asyncio.sleep(10)
        assert broker.events == ["registered", "fenced", "lost", "registered", "fenced"]

    run(story)


def test_the_broker_epoch_survives_a_zookeeper_restart_that_keeps_the_session() -> None:
    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        epoch = broker.registration.broker_epoch
        for outages in (1, 2):
            world.zookeeper.stop()
            await asyncio.sleep(6)
            assert broker.registration.is_fenced()
            world.zookeeper.start()
            await asyncio.sleep(2)
            assert broker.registration.broker_epoch == epoch
            assert not broker.registration.is_fenced()
            assert broker.events == ["registered", *["fenced"] * outages], "each time"

    run(story)


@pytest.mark.parametrize("seed", range(20))
def test_after_many_outages_the_broker_is_registered_exactly_once(seed: int) -> None:
    async def story(world: World) -> None:
        dice = random.Random(seed)
        broker = await start_broker(world, world.process("one"))
        observer = await world.observer()
        for _ in range(15):
            match dice.choice(["cut", "drop", "expire", "lose", "heal"]):
                case "cut":
                    world.zookeeper.cut("one")
                case "drop":
                    world.zookeeper.drop_connection("one")
                case "expire":
                    world.zookeeper.expire_session(broker.coordination.session_id)
                case "lose":
                    world.zookeeper.lose_next_reply("one")
                case _:
                    world.zookeeper.heal("one")
            await asyncio.sleep(dice.uniform(0, 4))
        world.zookeeper.heal("one")
        await asyncio.sleep(10)
        stat = await observer.exists(PATH)
        assert stat is not None
        assert stat.czxid == broker.registration.broker_epoch
        assert not broker.registration.is_fenced()

    run(story)


# opening the session


@pytest.mark.parametrize(("session_ms", "wait_ms", "seconds"), [(3_000, 8_000, 8), (18_000, 2_000, 2), (3_000, 0, 1)])
def test_an_unreachable_zookeeper_is_named_after_the_wait(session_ms: int, wait_ms: int, seconds: float) -> None:
    """Also if a session is longer: an attempt once lasted a whole session timeout."""

    async def story(world: World) -> None:
        world.zookeeper.stop()
        process = world.process("one")
        began = world.loop.time()
        with pytest.raises(ZooKeeperUnreachable, match=r"does not answer at zk:2181.*zookeeper\.connect"):
            await world.inside(process, open_session(world.open_for(process), "zk:2181", session_ms, wait_ms))
        assert seconds - 1 < world.loop.time() - began < seconds + 0.5

    run(story)


def test_start_goes_on_when_zookeeper_appears(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        world.zookeeper.stop()
        world.loop.call_later(12, world.zookeeper.start)
        process = world.process("one")
        coordination = await world.inside(process, open_session(world.open_for(process), "zk:2181", 3000, 30_000))
        assert coordination.session_id

    run(story)
    assert [record.message for record in caplog.records] == ["waiting up to 30 s for ZooKeeper at zk:2181"]


def test_a_broker_that_has_stopped_is_told_of_no_fence() -> None:
    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        await asyncio.sleep(1)
        assert broker.keeping is not None
        broker.keeping.cancel()
        world.zookeeper.cut("one")
        await asyncio.sleep(3 * SESSION_MS / 1000)
        assert broker.registration.is_fenced()
        assert broker.events == ["registered"]

    run(story)


def test_a_start_that_got_its_session_does_not_say_later_that_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        process = world.process("one")
        await world.inside(process, open_session(world.open_for(process), "zk:2181", SESSION_MS, 30_000))
        await asyncio.sleep(2 * PATIENCE_SECONDS)

    run(story)
    assert caplog.messages == []


def test_a_session_timeout_that_differs_from_the_requested_one_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        process = world.process("one")
        await world.inside(process, open_session(world.open_for(process), "zk:2181", 18_000, 1000))

    run(story)
    assert "a session of 10000 ms, not the 18000 ms" in caplog.text
