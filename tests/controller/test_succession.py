"""Failures of the active controller: candidates in the processes of registered brokers."""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.controller import controller_election
from minibroker.controller.controller_election import ControllerFence
from minibroker.controller.detection.succession import Succession
from minibroker.protocol import znodes
from minibroker.protocol.znodes import BrokerRegistration, ControllerNode
from minibroker.runtime.ports import CoordinationUnavailable, NoNode, Stat
from minibroker.simulation.world.world import SimulatedWorld
from tests.controller.cluster import SESSION_MS, Candidate, Cluster, simulated

SOON_SECONDS = 0.3
"""Far below a session."""


async def three_candidates(cluster: Cluster, **settings: bool) -> list[Candidate]:
    """Brokers 1, 2, 3; the candidate of broker 1 is controller, and the others hold liveness connections to it."""
    await cluster.start(1, 2, 3)
    candidates = [await cluster.candidate_of(1, **settings)]
    await cluster.until(lambda: candidates[0].service.is_active)
    candidates += [await cluster.candidate_of(2, **settings), await cluster.candidate_of(3, **settings)]
    await asyncio.sleep(2)
    return candidates


def controller_id(cluster: Cluster) -> int | None:
    node = cluster.world.zookeeper.tree.nodes.get(znodes.CONTROLLER)
    return None if node is None else ControllerNode.decode(node.data).brokerid


def registered(cluster: Cluster) -> list[int]:
    return [each for each in (1, 2, 3, 4) if znodes.broker_path(each) in cluster.world.zookeeper.tree.nodes]


def all_refused(cluster: Cluster) -> None:
    for broker in cluster.brokers.values():
        broker.is_refused = True


@simulated
async def test_a_failed_controller_is_succeeded_at_once_and_its_registration_is_removed(cluster: Cluster) -> None:
    _, second, third = await three_candidates(cluster)
    all_refused(cluster)
    cluster.world.kill("broker1")
    await cluster.until(lambda: second.service.is_active or third.service.is_active, SOON_SECONDS)
    await asyncio.sleep(1)
    assert [second.service.is_active, third.service.is_active].count(True) == 1
    assert controller_id(cluster) in (2, 3)
    assert registered(cluster) == [2, 3]
    assert {second.service.controller_epoch, third.service.controller_epoch} == {2, None}
    winner = second if second.service.is_active else third
    await asyncio.sleep(2 * SESSION_MS / 1000)  # the end of the old session changes nothing
    assert winner.service.controller_epoch == 2
    assert winner.service.is_active


@simulated
async def test_loser_of_the_race_watches_the_winner(cluster: Cluster) -> None:
    _, second, third = await three_candidates(cluster)
    fourth = await cluster.add_broker(4)
    all_refused(cluster)
    cluster.world.kill("broker1")
    await cluster.until(lambda: second.service.is_active or third.service.is_active, SOON_SECONDS)
    await asyncio.sleep(2)
    winner, loser = (second, third) if second.service.is_active else (third, second)
    cluster.world.kill(winner.name)
    await cluster.until(lambda: loser.service.is_active, SOON_SECONDS)
    assert loser.service.controller_epoch == 3
    assert fourth.inquiries


@simulated
async def test_refusals_of_a_former_controller_raise_no_suspicion_of_its_successor(cluster: Cluster) -> None:
    """The candidate learns of the successor only after more refusals of the one before."""
    first, second, _ = await three_candidates(cluster)
    await cluster.add_broker(4)
    cluster.world.kill("broker1")
    await asyncio.sleep(0.5)
    hold = cluster.world.zookeeper.hold("broker3", lambda request: request.path == znodes.CONTROLLER_EPOCH)
    await hold.caught()
    cluster.world.zookeeper.expire_session(first.coordination.session_id)
    await cluster.until(lambda: second.service.is_active)
    cluster.world.network.cut("broker3", "broker2")
    await asyncio.sleep(1)
    hold.release()
    await asyncio.sleep(1)
    assert {each.broker_id for broker in cluster.brokers.values() for each in broker.inquiries} == {1}


@simulated
async def test_only_a_candidate_watches_the_controller(cluster: Cluster) -> None:
    """A new controller would dial its predecessor as long as it leads, once per second where that one is dead."""
    first, second, third = await three_candidates(cluster)

    def watching() -> list[str]:
        return sorted(each.get_name() for each in asyncio.all_tasks() if "liveness-of-controller" in each.get_name())

    assert watching() == ["liveness-of-controller-1"] * 2
    await first.stop()
    await cluster.until(lambda: second.service.is_active or third.service.is_active, SOON_SECONDS)
    await asyncio.sleep(2)
    assert watching() == [f"liveness-of-controller-{controller_id(cluster)}"], "by the other candidate"
    await second.stop()
    await third.stop()
    await asyncio.sleep(0)
    assert watching() == []


@simulated
async def test_without_a_confirmation_the_session_is_waited_for(cluster: Cluster) -> None:
    _, second, third = await three_candidates(cluster)
    cluster.world.kill("broker1")
    await asyncio.sleep(SESSION_MS / 2000)
    assert controller_id(cluster) == 1
    for broker in (cluster.brokers[2], cluster.brokers[3]):
        assert 1 <= len(broker.inquiries) < 12, "at each refusal, which come less and less often"
    await cluster.until(lambda: second.service.is_active or third.service.is_active, 2 * SESSION_MS / 1000)


@simulated
async def test_detection_by_session_asks_no_broker(cluster: Cluster) -> None:
    _, second, third = await three_candidates(cluster, detects_lost_connections=False)
    all_refused(cluster)
    cluster.world.kill("broker1")
    await asyncio.sleep(SESSION_MS / 2000)
    assert controller_id(cluster) == 1
    assert cluster.brokers[2].inquiries == []
    await cluster.until(lambda: second.service.is_active or third.service.is_active, 2 * SESSION_MS / 1000)


@simulated
async def test_controller_that_hangs_is_not_succeeded_before_its_session_ends(cluster: Cluster) -> None:
    await three_candidates(cluster)
    all_refused(cluster)
    cluster.world.pause("broker1")
    await asyncio.sleep(SESSION_MS / 2000)
    assert controller_id(cluster) == 1
    assert cluster.brokers[2].inquiries == []


@simulated
async def test_no_controller_is_succeeded_while_zookeeper_is_away(cluster: Cluster) -> None:
    _, second, third = await three_candidates(cluster)
    all_refused(cluster)
    cluster.world.zookeeper.stop()
    cluster.world.kill("broker1")
    await asyncio.sleep(SESSION_MS / 3000)
    assert not second.service.is_active
    assert not third.service.is_active
    cluster.world.zookeeper.start()
    await cluster.until(lambda: second.service.is_active or third.service.is_active, 2)
    assert registered(cluster) == [2, 3]


@simulated
async def test_a_live_controller_that_is_falsely_suspected_resigns(cluster: Cluster) -> None:
    first, second, third = await three_candidates(cluster)
    all_refused(cluster)
    cluster.world.network.reject(None, "broker1")
    await cluster.until(lambda: second.service.is_active or third.service.is_active, SOON_SECONDS)
    await cluster.until(lambda: not first.service.is_active, SOON_SECONDS)
    assert registered(cluster) == [2, 3]


@pytest.mark.parametrize(
    ("endpoints", "session", "is_known"),
    [
        (["INTERNAL://b1:1"], 7, True),
        (["INTERNAL://b1:1"], 8, False),  # registered again: the controller's znode is that of its former session
        (["OTHER://b1:1"], 7, False),
        (["OTHER://b1:1"], 8, False),
    ],
)
def test_a_controller_is_watched_where_both_znodes_are_of_one_session(
    endpoints: list[str], session: int, is_known: bool
) -> None:
    """Its registration is removed if it is found dead: that of a later session belongs to a broker that lives."""
    registration = BrokerRegistration(
        host="b1",
        port=1,
        endpoints=endpoints,
        listener_security_protocol_map={},
        timestamp="0",
        incarnation_id="i",
        directory_id="d",
    )
    nodes = {
        znodes.CONTROLLER_EPOCH: (b"5", 0),
        znodes.CONTROLLER: (ControllerNode(brokerid=1, timestamp="0").encode(), 7),
        znodes.broker_path(1): (registration.encode(), session),
    }

    async def get(path: str) -> tuple[bytes, Stat]:
        content, owner = nodes[path]
        return content, Stat(version=3, czxid=40, mzxid=41, ephemeral_owner=owner, num_children=0)

    unused = cast(Any, None)
    candidate = cast(Any, SimpleNamespace(broker_id=2))
    coordination = cast(Any, SimpleNamespace(get=get))
    succession = Succession(coordination, unused, candidate, "INTERNAL", unused, unused)
    current = SimulatedWorld().run(succession._read())
    found = None if current is None else (current.broker_id, current.broker_epoch, current.controller_epoch)
    assert found == ((1, 40, 5) if is_known else None)


def test_without_a_controller_its_node_is_looked_for_from_time_to_time() -> None:
    asked: list[str] = []

    async def get(path: str) -> tuple[bytes, Stat]:
        await asyncio.sleep(0.001)
        asked.append(path)
        raise NoNode(path)

    unused = cast(Any, None)
    candidate = cast(Any, SimpleNamespace(broker_id=2))
    succession = Succession(cast(Any, SimpleNamespace(get=get)), unused, candidate, "INTERNAL", unused, unused)

    async def wait_for_a_failure() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.5):
                await succession.failure_of_active_controller()

    SimulatedWorld().run(wait_for_a_failure())
    assert 5 <= len(asked) <= 6


def test_a_successor_waits_while_zookeeper_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed controller may have taken the connection to ZooKeeper's leader with it."""
    fence = ControllerFence(controller_epoch=8, epoch_version=8)
    answers: list[ControllerFence | Exception] = [
        CoordinationUnavailable("gone"),
        CoordinationUnavailable("gone"),
        fence,
    ]

    async def win(*_: object) -> ControllerFence:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(controller_election, "_win", win)
    current = SimpleNamespace(
        broker_id=1, controller_version=1, registration_version=2, controller_epoch=7, epoch_version=7
    )
    nothing = cast(Any, None)
    assert SimulatedWorld().run(controller_election.succeed(nothing, nothing, nothing, cast(Any, current))) == fence
    assert answers == []
