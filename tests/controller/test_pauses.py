"""A controller or candidate that gets no answer asks again until it does, and pauses before each attempt: without a
pause it would take a whole core, from the broker in its process, too, and flood what it asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.controller import cluster_reader, controller_election, log_inquiry, service
from minibroker.controller.cluster_reader import ClusterReader
from minibroker.controller.controller_election import (
    Candidate,
    ControllerFence,
    CurrentController,
    _was_won,
    contest,
    succeed,
)
from minibroker.controller.detection import succession
from minibroker.controller.detection.succession import Succession
from minibroker.controller.log_inquiry import ask_logs
from minibroker.controller.service import ControllerConfig, ControllerService
from minibroker.protocol import znodes
from minibroker.protocol.ids import BrokerEpoch
from minibroker.runtime.ports import (
    Coordination,
    CoordinationError,
    CoordinationUnavailable,
    NetworkError,
    WriteOutcomeUnknown,
)
from minibroker.simulation.world.world import SimulatedWorld
from tests.controller.cluster import LISTENER, Cluster, OwnBroker, accept_topic_value, simulated
from tests.controller.facts import T0

OUTAGE_SECONDS = 20.0
WITHOUT_PAUSE = 1_000
"""Attempts in one outage that are too many whatever the pause."""
UNUSED = cast(Any, None)
GONE = CurrentController(
    broker_id=9,
    broker_epoch=1,
    address=("broker9", 1),
    controller_epoch=1,
    epoch_version=0,
    controller_version=0,
    registration_version=0,
)


class Outage:
    """Fails every attempt, without any delay, for so long after the first."""

    def __init__(self, error: Exception) -> None:
        self.attempts: list[float] = []
        """Seconds since the first."""
        self._error = error
        self._began: float | None = None

    @property
    def is_over(self) -> bool:
        return bool(self.attempts) and self.attempts[-1] >= OUTAGE_SECONDS

    def attempt(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._began is None:
            self._began = now
        self.attempts.append(now - self._began)
        assert len(self.attempts) < WITHOUT_PAUSE, "it tries again without a pause"
        if not self.is_over:
            raise self._error


class InterruptedCoordination:
    """A client of ZooKeeper that answers nothing in an outage. With `begins_with_write` the outage begins when it has
    lost the answer to a multi."""

    def __init__(self, inner: Coordination, outage: Outage, *, begins_with_write: bool = False) -> None:
        self._inner, self._outage, self._write_awaited = inner, outage, begins_with_write

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("get", "exists", "get_children", "create", "delete", "set", "multi"):
            return found

        async def called(*arguments: Any, **options: Any) -> Any:
            if not self._write_awaited:
                self._outage.attempt()
            result = await found(*arguments, **options)
            if self._write_awaited and name == "multi":
                self._write_awaited = False
                raise WriteOutcomeUnknown("lost on its way back")
            return result

        return called


@pytest.mark.parametrize(
    ("owner", "content", "version", "is_won"),
    [
        (7, b"5", 9, True),
        (8, b"5", 9, False),
        (None, b"5", 9, False),
        (7, b"6", 9, False),
        (7, b"4", 9, False),
        (7, b"5", 10, False),
    ],
)
def test_an_election_was_won_if_both_nodes_are_as_it_wrote_them(
    owner: int | None, content: bytes, version: int, is_won: bool
) -> None:
    """Another controller may have been elected since the answer was lost."""
    node = None if owner is None else SimpleNamespace(ephemeral_owner=owner)

    async def exists(path: str) -> Any:
        return node

    async def get(path: str) -> Any:
        return content, SimpleNamespace(version=version)

    coordination: Any = SimpleNamespace(session_id=7, exists=exists, get=get)
    fence = ControllerFence(controller_epoch=5, epoch_version=9)
    assert asyncio.run(_was_won(coordination, fence)) is is_won


Work = Callable[[Cluster, Coordination], Awaitable[object]]
CANDIDATE = Candidate(broker_id=1, incarnation_id="i1")


async def contest_once(cluster: Cluster, coordination: Coordination) -> None:
    clock = cluster.world.runtime("observer").clock
    assert await contest(coordination, clock, CANDIDATE, lambda: None) is not None


async def succeed_once(cluster: Cluster, coordination: Coordination) -> None:
    clock = cluster.world.runtime("observer").clock
    assert await succeed(coordination, clock, CANDIDATE, GONE) is None, "there is none to succeed"


@simulated
async def test_a_candidate_waits_for_a_controller_whose_failure_it_could_see(cluster: Cluster) -> None:
    succession = Succession(cluster.observer, UNUSED, CANDIDATE, LISTENER, UNUSED, UNUSED)
    await cluster.start()
    waiting = asyncio.create_task(succession.failure_of_active_controller())
    await asyncio.sleep(30)
    assert not waiting.done()
    waiting.cancel()


async def read_the_controller(cluster: Cluster, coordination: Coordination) -> None:
    found = Succession(coordination, UNUSED, CANDIDATE, LISTENER, UNUSED, UNUSED)._current_controller()
    assert await found is None


async def read_a_node(cluster: Cluster, coordination: Coordination) -> None:
    fence = ControllerFence(controller_epoch=1, epoch_version=0)
    assert await ClusterReader(coordination, fence).exists(znodes.BROKER_IDS)


async def become_active(cluster: Cluster, coordination: Coordination) -> None:
    runtime = cluster.world.runtime("observer")
    config = ControllerConfig(broker_id=1, inter_broker_listener_name=LISTENER)
    candidate = ControllerService(
        config, coordination, UNUSED, OwnBroker(), runtime.clock, runtime.random, accept_topic_value
    )
    assert await candidate._become_active(CANDIDATE, UNUSED)


NO_LINK, REFUSES = CoordinationUnavailable("no link"), CoordinationError("session moved")


@pytest.mark.parametrize(
    ("work", "error", "pause", "begins_with_write"),
    [
        pytest.param(contest_once, NO_LINK, controller_election.RETRY_SECONDS, False, id="contest"),
        pytest.param(contest_once, NO_LINK, controller_election.RETRY_SECONDS, True, id="outcome of a contest"),
        pytest.param(succeed_once, NO_LINK, controller_election.RETRY_SECONDS, False, id="succession"),
        pytest.param(read_the_controller, NO_LINK, succession.RETRY_SECONDS, False, id="candidate reads"),
        pytest.param(read_a_node, NO_LINK, cluster_reader.RETRY_SECONDS, False, id="controller reads"),
        pytest.param(read_a_node, REFUSES, cluster_reader.REFUSED_SECONDS, False, id="controller is refused"),
        pytest.param(become_active, REFUSES, service.RETRY_SECONDS, False, id="candidate is refused"),
    ],
)
def test_zookeeper_is_asked_again_after_a_pause_until_it_answers(
    work: Work, error: Exception, pause: float, begins_with_write: bool
) -> None:
    world, outage = SimulatedWorld(), Outage(error)

    async def story() -> None:
        cluster = Cluster(world)
        await cluster.start()
        coordination: Any = InterruptedCoordination(cluster.observer, outage, begins_with_write=begins_with_write)
        await work(cluster, coordination)

    world.run(story())
    failed = [at for at in outage.attempts if at < OUTAGE_SECONDS]
    assert outage.is_over
    assert len(failed) == pytest.approx(OUTAGE_SECONDS / pause, abs=1)


def test_a_broker_that_does_not_answer_about_its_logs_is_asked_again_less_and_less_often() -> None:
    world, outage = SimulatedWorld(), Outage(NetworkError("refused"))

    async def connect(*_: object, **__: object) -> None:
        outage.attempt()
        raise asyncio.CancelledError  # enough

    async def story() -> None:
        dialer = cast(Any, SimpleNamespace(connect=connect))
        with pytest.raises(asyncio.CancelledError):
            await ask_logs(dialer, "controller", 2, ("broker", 1), BrokerEpoch(7), [T0])

    world.run(story())
    pauses = [round(after - before, 3) for before, after in zip(outage.attempts, outage.attempts[1:], strict=False)]
    assert pauses[:5] == [log_inquiry.RETRY_SECONDS_MIN, 0.2, 0.4, 0.8, log_inquiry.RETRY_SECONDS_MAX]
    assert set(pauses[5:]) == {log_inquiry.RETRY_SECONDS_MAX}
