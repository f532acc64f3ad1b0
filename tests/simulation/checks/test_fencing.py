"""The checker of hardening rule 11, over a cluster in which one thing is done that no broker would do."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import msgspec
import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.descriptions import NewTopic
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import ApiKey
from minibroker.protocol.znodes import BROKER_IDS, CONTROLLER, PartitionState, broker_path, partition_state_path
from minibroker.runtime.ports import DeleteOp, SetOp
from minibroker.simulation.checks.checker import checking
from minibroker.simulation.checks.control.fencing import (
    INFORMED_SECONDS,
    NEVER_ANSWERED_SECONDS,
    RECONNECT_SECONDS,
    RULE,
    SILENT_SECONDS,
    FencingChecker,
)
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.links import GAP_SECONDS
from minibroker.simulation.world.message_holds import requests
from minibroker.simulation.world.observations import RequestReceived
from minibroker.simulation.world.zookeeper_links import ZooKeeperRequest

OLD_SECONDS = 5.0
"""No broker acts any more on the state from before the registrations."""


class Life:
    """Three brokers, and a topic only where a test creates one. Clients see nothing of the faults."""

    def __init__(self, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self.cluster = SimulatedCluster(1, settings={"zookeeper.session.timeout.ms": "10000", **settings})
        self.reference = ReferenceState(self.cluster, {})
        self.checker = FencingChecker(self.cluster, self.reference)
        self.lines: list[str] = []
        self.checker.listeners.append(self.lines.append)

    def run(self, act: Callable[["Life"], Awaitable[None]]) -> list[str]:
        """The findings, each as its first line."""
        self.cluster.world.run(self._live(act), seconds_max=120)
        assert {each.invariant for each in self.reference.findings} <= {RULE}
        return [each.text for each in self.reference.findings]

    async def _live(self, act: Callable[["Life"], Awaitable[None]]) -> None:
        with checking(self.cluster, self.reference, self.checker):
            self.cluster.start_all()
            await self.cluster.until_ready()
            await asyncio.sleep(OLD_SECONDS)
            await act(self)

    @property
    def controller(self) -> int:
        found = self.cluster.controller()
        assert found is not None
        return found

    def others(self, *broker_ids: int) -> list[int]:
        return [b for b in self.cluster.broker_ids if b not in broker_ids]

    def write(self, writer: int, *paths: str) -> None:
        """Remove these nodes in one multi, as if that broker did it."""
        [session] = self.cluster.world.zookeeper.sessions_of(f"broker-{writer}")
        self.cluster.world.zookeeper.tree.transact([DeleteOp(path=path) for path in paths], session)

    def lead_instead(self, topic: str, broker_id: int) -> None:
        """Write another leader, as if the controller had elected it."""
        path = partition_state_path(TopicPartition(topic, 0))
        [session] = self.cluster.world.zookeeper.sessions_of(f"broker-{self.controller}")
        tree = self.cluster.world.zookeeper.tree
        state = PartitionState.decode(tree.nodes[path].data)
        after = msgspec.structs.replace(state, leader=broker_id, leader_epoch=state.leader_epoch + 1)
        tree.transact([SetOp(path=path, data=after.encode())], session)

    def look(self, observer: int, broker_id: int) -> None:
        """Ask ZooKeeper for a registration, as a broker does once it has decided to remove it."""
        zookeeper = self.cluster.world.zookeeper
        [session] = zookeeper.sessions_of(f"broker-{observer}")
        link = zookeeper.sessions[session].link
        assert link is not None
        link.send(ZooKeeperRequest("exists", broker_path(broker_id)), lambda result, error: True)

    async def lead(self, topic: str) -> int:
        """Create this topic; returns its leader, which is not the controller, so the controller has to be asked."""
        leader = self.others(self.controller)[0]
        replicas = [leader, *self.others(leader)]
        async with AdminClient(
            bootstrap_servers=self.cluster.bootstrap_servers, runtime=self.cluster.client_runtime()
        ) as admin:
            await admin.create_topics([NewTopic(name=topic, assignment={0: replicas})])
        await self.cluster.until(lambda: self.cluster.leader(topic) == leader, 5, "its leader")
        await asyncio.sleep(OLD_SECONDS)
        return leader

    def reject(self, victim: int, *others: int) -> None:
        for other in others:
            self.cluster.world.network.reject(f"broker-{other}", f"broker-{victim}")


async def _a_removal_without_cause(life: Life) -> None:
    victim = life.others(life.controller)[0]
    life.write(life.controller, broker_path(victim))


async def _one_refusal(life: Life) -> None:
    controller = life.controller
    victim = life.others(controller)[0]
    life.reject(victim, controller)
    await asyncio.sleep(0.5)
    life.write(controller, broker_path(victim))


async def _a_removed_controller(life: Life) -> None:
    life.write(life.others(life.controller)[0], CONTROLLER)


async def _until_long_silent(life: Life) -> int:
    """Keep the controller's orders from one broker for longer than it may be silent, shorter than the controller
    waits."""
    victim = life.others(life.controller)[0]
    life.cluster.world.network.cut(f"broker-{life.controller}", f"broker-{victim}")
    await asyncio.sleep(SILENT_SECONDS + 1)
    return victim


async def _until_it_answers(life: Life, victim: int) -> None:
    life.cluster.world.network.join(f"broker-{victim}")
    await asyncio.sleep(RECONNECT_SECONDS + 1)


async def _a_removal_decided_before_the_answer(life: Life) -> None:
    """The remover looked, stood still, and wrote: the order of seed 17151297."""
    victim = await _until_long_silent(life)
    life.look(life.controller, victim)
    await _until_it_answers(life, victim)
    life.write(life.controller, broker_path(victim))


async def _a_removal_decided_after_the_answer(life: Life) -> None:
    victim = await _until_long_silent(life)
    await _until_it_answers(life, victim)
    life.look(life.controller, victim)
    life.write(life.controller, broker_path(victim))


async def _another_registration_is_removed(life: Life) -> None:
    """What was seen of a registration says nothing of the next one."""
    victim = await _until_long_silent(life)
    life.look(life.controller, victim)
    await _until_it_answers(life, victim)
    zookeeper = life.cluster.world.zookeeper
    for session in zookeeper.sessions_of(f"broker-{victim}"):
        zookeeper.expire_session(session)
    await life.cluster.until(lambda: broker_path(victim) in zookeeper.tree.nodes, 5, "its new registration")
    await asyncio.sleep(0.5)
    life.write(life.controller, broker_path(victim))


async def _register_again(life: Life) -> int:
    """A broker registers again, and has more than the second in which it must answer the controller."""
    victim = life.others(life.controller)[0]
    zookeeper = life.cluster.world.zookeeper
    for session in zookeeper.sessions_of(f"broker-{victim}"):
        zookeeper.expire_session(session)
    await life.cluster.until(lambda: broker_path(victim) in zookeeper.tree.nodes, 5, "its new registration")
    await asyncio.sleep(NEVER_ANSWERED_SECONDS + 1)
    return victim


async def _a_removal_of_one_that_answers(life: Life) -> None:
    victim = await _register_again(life)
    life.look(life.controller, victim)
    life.write(life.controller, broker_path(victim))


async def _a_removal_of_one_that_cannot_ask_zookeeper(life: Life) -> None:
    """It may have refused each order of a new controller, as in seed 17270088."""
    victim = await _register_again(life)
    zookeeper = life.cluster.world.zookeeper
    zookeeper.cut(f"broker-{victim}")
    life.checker.sample()
    await asyncio.sleep(NEVER_ANSWERED_SECONDS / 2)
    zookeeper.heal(f"broker-{victim}")
    life.look(life.controller, victim)
    life.write(life.controller, broker_path(victim))


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (_a_removal_decided_before_the_answer, []),
        (_a_removal_of_one_that_cannot_ask_zookeeper, []),
        (_a_removal_of_one_that_answers, ["one removed the registration of another and was not refused by it"]),
        (
            _a_removal_decided_after_the_answer,
            ["one removed the registration of another and was not refused by it"],
        ),
        (_another_registration_is_removed, ["one removed the registration of another and was not refused by it"]),
        (_a_removal_without_cause, ["one removed the registration of another and was not refused by it"]),
        (_one_refusal, ["one removed the registration of another, and no second broker confirmed it"]),
        (
            _a_removed_controller,
            ["one succeeded another in several writes", "one deposed another and was not refused by it"],
        ),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_no_broker_is_fenced_or_deposed_without_confirmation(
    act: Callable[[Life], Awaitable[None]], found: list[str]
) -> None:
    texts = [re.sub(r"^broker-\d", "one", re.sub(r" broker-\d", " another", text)) for text in Life().run(act)]
    assert texts == found


async def _killed_broker(life: Life) -> None:
    victim = life.others(life.controller)[0]
    life.cluster.kill(victim)
    await life.cluster.until(lambda: life.checker.counts["broker fenced by confirmation"] == 1, 1, "its end")


async def _killed_controller(life: Life) -> None:
    life.cluster.kill(life.controller)
    await life.cluster.until(
        lambda: life.checker.counts["controller succeeded by confirmation"] == 1, 1, "its successor"
    )


async def _rejected_broker(life: Life) -> None:
    victim = life.others(life.controller)[0]
    life.reject(victim, *life.others(victim))
    await life.cluster.until(lambda: life.checker.counts["broker fenced falsely: it lives"] == 1, 1, "its removal")
    await life.cluster.until(
        lambda: broker_path(victim) in life.cluster.world.zookeeper.tree.nodes, 5, "its new registration"
    )


async def _silent_broker(life: Life) -> None:
    victim = life.others(life.controller)[0]
    life.cluster.world.network.isolate(f"broker-{victim}")
    await asyncio.sleep(5)
    assert not life.checker.counts


async def _leader_without_orders(life: Life) -> None:
    """It answers what the controller's replicas fetch, but no order: seed 17490230."""
    leader = await life.lead("a")
    network = life.cluster.world.network
    hold = network.hold(f"broker-{life.controller}", f"broker-{leader}", requests(ApiKey.LEADER_AND_ISR))
    third = life.others(life.controller, leader)[0]
    life.cluster.kill(third)
    await hold.caught()
    life.cluster.start(third)  # a controller that no broker answers would doubt itself
    await life.cluster.until(lambda: life.checker.counts["broker fenced falsely: it lives"] == 1, 15, "its removal")
    hold.release()


@pytest.mark.parametrize(
    "act", [_killed_broker, _killed_controller, _rejected_broker, _silent_broker, _leader_without_orders]
)
def test_reactions_to_real_and_false_failures_are_counted_and_are_no_finding(
    act: Callable[[Life], Awaitable[None]],
) -> None:
    life = Life()
    assert life.run(act) == []
    assert bool(life.lines) == bool(life.checker.counts)


@pytest.mark.parametrize("is_way_back", [False, True])
@pytest.mark.parametrize(("gap_seconds", "is_found"), [(0.05, False), (GAP_SECONDS + 0.1, True)])
def test_cuts_with_a_short_gap_are_one_silence(gap_seconds: float, is_found: bool, is_way_back: bool) -> None:
    """In the gap other connections get through, but the order waits for one that was begun during the first cut: so the
    controller removes the registration. After a long gap it does not, so the test removes it, and that is found."""

    async def act(life: Life) -> None:
        leader = await life.lead("a")
        way, network = (f"broker-{life.controller}", f"broker-{leader}"), life.cluster.world.network
        third = life.others(life.controller, leader)[0]
        network.cut(*way)
        life.cluster.kill(third)
        await asyncio.sleep(0.6)
        life.cluster.start(third)  # its registration is an order to the others
        await asyncio.sleep(3.4)
        network.heal(*way)
        await asyncio.sleep(gap_seconds)
        second = way[::-1] if is_way_back else way
        network.cut(*second)
        if is_found:
            await asyncio.sleep(3.0)
            life.look(life.controller, leader)
            life.write(life.controller, broker_path(leader))
        else:
            removed = "broker fenced falsely: it lives"
            await life.cluster.until(lambda: life.checker.counts[removed] == 1, SILENT_SECONDS, "its removal")
        network.heal(*second)

    settings = {"request.timeout.ms": "1000", "zookeeper.session.timeout.ms": "3000"}
    assert bool(Life(settings).run(act)) == is_found


async def _a_leader_killed_in_its_stop(life: Life) -> None:
    """Its request to hand over outlives it, and it is started again before that is granted: all between two samples."""
    leader = await life.lead("a")
    request = life.cluster.world.network.hold(f"broker-{leader}", None, requests(ApiKey.CONTROLLED_SHUTDOWN))
    life.cluster.stop(leader)
    await request.caught()
    life.cluster.power_loss(leader)
    life.cluster.start(leader)
    request.release()
    await life.cluster.until(lambda: life.cluster.leader("a") not in (None, leader), 5, "another leader")


async def _a_leader_replaced_by_a_held_controller(life: Life) -> None:
    """It has read that the leader's registration was gone, and a slow disk holds it before it hears that."""
    leader, world = await life.lead("a"), life.cluster.world
    held = [life.controller]

    def hold(event: RequestReceived) -> None:
        if held and event.path == BROKER_IDS and event.host == f"broker-{held[0]}":
            world.loop.call_soon(world.loop.charge, INFORMED_SECONDS + 1, context=world.process(event.host).context)
            held.clear()

    world.world_observers.subscribe(RequestReceived, hold)
    for session in world.zookeeper.sessions_of(f"broker-{leader}"):
        world.zookeeper.expire_session(session)

    def is_replaced() -> bool:
        life.checker.sample()
        return life.cluster.leader("a") not in (None, leader)

    await life.cluster.until(is_replaced, 10, "another leader")


async def _a_leader_replaced_without_cause(life: Life) -> None:
    leader = await life.lead("a")
    other = life.others(life.controller, leader)[0]
    life.lead_instead("a", other)


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (_a_leader_killed_in_its_stop, []),
        (_a_leader_replaced_by_a_held_controller, []),
        (_a_leader_replaced_without_cause, ["a leader was replaced that is not fenced"]),
    ],
)
def test_a_registered_leader_is_replaced_only_if_it_stops(
    act: Callable[[Life], Awaitable[None]], found: list[str]
) -> None:
    assert Life().run(act) == found
