"""A dead leader that refuses connections must be replaced within two seconds: the checker, at the end of a run at which
one broker stays down."""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.checker import checking
from minibroker.simulation.checks.control.failover import FailoverChecker, slow_failover_seconds
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.checks.stability import Stability
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.endings import live_with_one_down
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.opening import open_run
from minibroker.simulation.swarm.options import draw_options
from minibroker.simulation.swarm.outcome import RunOutcome
from minibroker.simulation.swarm.run import SAMPLE_SECONDS

SETTINGS = {"zookeeper.session.timeout.ms": "3000", "request.timeout.ms": "1000"}
SEED = 1
"""With it the broker that stays down is not the controller, whose failure may take longer."""
DOWN_SECONDS = 4.0
"""Longer than the session, so that the cluster heals in the end."""


@pytest.mark.invariant("I37")
@pytest.mark.parametrize(("detection", "found"), [("connection", set()), ("session", {"I37"})])
def test_broker_that_stays_down_is_replaced_by_its_refusals(detection: str, found: set[str]) -> None:
    """The setting plants a controller that ignores refused connections; the checker is not told of it."""
    cluster = SimulatedCluster(SEED, settings={**SETTINGS, "broker.failure.detection": detection})
    options = draw_options(cluster.world.random("options"))
    options.topics, options.settings, options.containers = {"a": (3, 3, 1)}, SETTINGS, False
    reference = ReferenceState(cluster, options.topics)
    stability = Stability(cluster, reference)
    checker = FailoverChecker(cluster, reference, stability, SETTINGS)
    outcome = RunOutcome(0, options, History(lambda: cluster.world.loop.elapsed))

    async def sample() -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            reference.sample()

    async def run() -> None:
        injector = await open_run(cluster, outcome, reference, None)
        injector.listeners.append(stability.note)
        sampling = asyncio.create_task(sample())
        await live_with_one_down(injector, DOWN_SECONDS)
        sampling.cancel()

    with contextlib.ExitStack() as stack:
        for each in (stability, checker):
            stack.enter_context(checking(cluster, reference, each))
        cluster.world.run(run(), seconds_max=60)
    assert {each.invariant for each in reference.findings} == found


@pytest.mark.invariant("I37")
def test_a_slow_failover_counts_from_the_last_fault() -> None:
    """A reset or a lost reply is over before the next sample, and what it leaves behind takes time."""
    settings, found = {**SETTINGS, "broker.failure.detection": "session"}, list[str]()
    loop, stability = SimpleNamespace(elapsed=0.0), SimpleNamespace(since=0.0, fit={2}, fit_since=lambda broker_id: 0.0)
    reference = SimpleNamespace(
        states=lambda: [SimpleNamespace(partition=TopicPartition("a", 0), leader=1, leader_epoch=0, members=(1, 2))],
        has_sound_member=lambda actual, fit: True,
        find=lambda invariant, *facts: found.append(invariant),
    )
    cluster = SimpleNamespace(world=SimpleNamespace(loop=loop), controller=lambda: 2, replica=lambda *asked: None)
    checker = FailoverChecker(cast(Any, cluster), cast(Any, reference), cast(Any, stability), settings)
    bound_seconds = slow_failover_seconds(settings)

    def pass_time(seconds: float) -> None:
        end = loop.elapsed + seconds
        while loop.elapsed < end:
            loop.elapsed += SAMPLE_SECONDS
            checker.sample()

    pass_time(bound_seconds - 1)
    stability.since = loop.elapsed
    pass_time(bound_seconds - 1)
    assert found == []
    pass_time(2)
    assert found == ["I37"]
