"""Faults that come at the same time: none ends another, and one that must be alone is."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from minibroker.chaos.plan.drawing import Plan, PlannedFault
from minibroker.chaos.plan.fault_kinds import Target
from minibroker.chaos.run.chaos_run import ChaosRun
from minibroker.chaos.run.fault_actions import FaultActions, NoTarget
from minibroker.chaos.run.opening import open_cluster, run_on
from minibroker.chaos.run.options import ChaosOptions
from minibroker.chaos.run.recorder import Recorder

T = TypeVar("T")
FAR_S = 1_000.0


def planned(kind: str, target: Target = "leader", at_s: float = 2.0, for_s: float = 3.0) -> PlannedFault:
    return PlannedFault(at_s=at_s, kind=kind, target=target, for_s=for_s)


def options(*faults: PlannedFault) -> ChaosOptions:
    plan = Plan(seed=1, duration_s=9, overlap_max=2, faults=faults)
    return ChaosOptions(backend="simulated", plan=plan, out=Path("unused"), rate=20)


def simulated(work: Coroutine[Any, Any, T]) -> T:
    return run_on("simulated", work)


async def finished(run_options: ChaosOptions, interrupted_after_s: float = FAR_S) -> tuple[ChaosRun, list[int]]:
    """The run, and which brokers were down at its end."""
    async with open_cluster(run_options) as cluster:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        recorder = Recorder(lambda: loop.time() - began_s, io.BytesIO())
        run = ChaosRun(cluster, run_options, recorder)
        task = asyncio.create_task(run.run(lambda text: None))
        loop.call_later(interrupted_after_s, task.cancel)
        await task
        return run, [broker for broker in cluster.broker_ids if not cluster.is_running(broker)]


def test_the_next_fault_waits_until_one_that_must_be_alone_is_mended() -> None:
    run, _ = simulated(finished(options(planned("torn-tail"), planned("kill", "follower", at_s=2.5))))
    first, second = run.faults
    assert first.ended_s is not None and second.began_s is not None, (first, second)
    assert second.began_s >= first.ended_s
    assert run.troubles == []


async def overlapping(first: PlannedFault, second: PlannedFault, broker: int) -> None:
    """The second begins during the first, of the same broker if it is of one."""
    brokers = [[] if fault.target == "cluster" else [broker] for fault in (first, second)]
    async with open_cluster(options()) as cluster:
        await cluster.create_topic("chaos", partitions=4)
        actions = FaultActions(cluster, 1)
        async with actions.during(first, brokers[0]), actions.during(second, brokers[1]):
            pass


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (planned("pause"), planned("kill"), "broker 2 is still the target"),
        (planned("zookeeper-pause", "cluster"), planned("zookeeper-pause", "cluster"), "ZooKeeper is still the target"),
        (planned("zookeeper-pause", "cluster"), planned("zookeeper-kill", "cluster"), "ZooKeeper is still the target"),
        (planned("zookeeper-pause", "cluster"), planned("expire-session"), "ZooKeeper is still the target"),
    ],
    ids=lambda each: each.kind if isinstance(each, PlannedFault) else None,
)
def test_a_fault_of_what_another_holds_is_left_out(first: PlannedFault, second: PlannedFault, reason: str) -> None:
    with pytest.raises(NoTarget, match=reason):
        simulated(overlapping(first, second, 2))


async def pause_ends_inside_a_cut() -> bool:
    async with open_cluster(options()) as cluster:
        await cluster.create_topic("chaos", partitions=4)
        actions = FaultActions(cluster, 1)
        async with actions.during(planned("cut-from-zookeeper"), [2]):
            async with actions.during(planned("zookeeper-pause", "cluster"), []):
                pass
            is_reachable: bool = cluster.world.zookeeper.is_reachable("broker-2")
            return is_reachable


def test_a_pause_of_zookeeper_does_not_end_the_cut_of_one_broker() -> None:
    assert not simulated(pause_ends_inside_a_cut())


@pytest.mark.parametrize("kind", ["stop", "chase-leader", "rolling-restart"])
def test_an_interrupt_ends_the_fault_and_the_run_goes_on_to_its_end(kind: str) -> None:
    """It comes while the fault begins, which takes a while."""
    fault = planned(kind, "all" if kind == "rolling-restart" else "leader")
    run, down = simulated(finished(options(fault), interrupted_after_s=2.7))
    assert run.was_interrupted
    assert (down, run.troubles) == ([], [])
    assert list(run.phases) == ["load", "recovery", "reading", "end"]


async def broker_that_ends_by_itself() -> ChaosRun:
    run_options = options(planned("reset"))
    async with open_cluster(run_options) as cluster:
        recorder = Recorder(asyncio.get_running_loop().time, io.BytesIO())
        run = ChaosRun(cluster, run_options, recorder)
        asyncio.get_running_loop().call_later(5, cluster.simulation.kill, 3)
        await run.run(lambda text: None)
        return run


def test_a_broker_that_ends_by_itself_convicts() -> None:
    run = simulated(broker_that_ends_by_itself())
    assert run.troubles == ["broker 3 ended by itself, or was not started again: its log in disks/ says why"]
