"""A whole cluster under faults drawn from a seed; then it must converge and have kept every promise.

Owns: the course of a run, from the first start to the last check. `minibroker simulate` shows one.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from minibroker.simulation.checks.checker import checking
from minibroker.simulation.checks.control.fencing import FencingChecker
from minibroker.simulation.checks.disks.audited_disks import audit_disks
from minibroker.simulation.checks.finding import CheckerFinding, crash_finding
from minibroker.simulation.checks.history.acknowledging import acknowledging_seconds
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.checks.stability import Stability
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.beyond import DISASTERS, beyond_options, drive_beyond
from minibroker.simulation.swarm.checkers import checkers
from minibroker.simulation.swarm.choices import ALL_DRAWN, RunChoices, is_drawn
from minibroker.simulation.swarm.endings import converge_without_load, draw_endings, live_with_one_down
from minibroker.simulation.swarm.expiring import can_expire, expire_all
from minibroker.simulation.swarm.faults.disk_fault_schedule import DiskFaultSchedule
from minibroker.simulation.swarm.faults.disk_options import draw_disk_options
from minibroker.simulation.swarm.faults.fault_schedule import FaultSchedule
from minibroker.simulation.swarm.faults.older_zookeeper import OlderZooKeeper
from minibroker.simulation.swarm.final_checks import (
    compare_history,
    compare_lookups,
    compare_replicas,
    compare_settings,
    compare_witness,
    converge,
    stay_idle,
    take_records,
)
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.loads.all_loads import open_loads
from minibroker.simulation.swarm.loads.load_options import draw_load_options
from minibroker.simulation.swarm.loads.load_scene import LoadScene
from minibroker.simulation.swarm.narrator import NarratedLine, Narrator
from minibroker.simulation.swarm.opening import open_run
from minibroker.simulation.swarm.options import (
    DISK_THREADS,
    DISK_THREADS_SHARE,
    OLDER_ZOOKEEPER_SHARE,
    RunOptions,
    draw_options,
)
from minibroker.simulation.swarm.outcome import ELECTIONS_MIN, TRUNCATIONS_MIN, RunOutcome
from minibroker.simulation.swarm.recreated_topic import compare_recreated_topic
from minibroker.simulation.swarm.rereader import Rereader
from minibroker.simulation.swarm.workload import Workload
from minibroker.simulation.world.node import ProcessDead
from minibroker.simulation.world.world import ProcessCrashed, SimulatedWorld

SAMPLE_SECONDS = 0.05
LOOKS = 3
"""Samples after which a checker has seen that a bound is over."""
SECONDS_MAX = 400
HURRY_SECONDS_MAX = 20
LINES_PER_SECOND_MAX = 300
LINES_OF_A_PARTITION_MAX = 10
"""The log lines per virtual second that a run may have, and those that each partition may add."""


async def _drive(cluster: SimulatedCluster, outcome: RunOutcome, narrator: Narrator | None) -> None:
    reference = ReferenceState(cluster, outcome.options.topics)
    fencing = FencingChecker(cluster, reference)
    stability, events = Stability(cluster, reference), outcome.history.events
    with contextlib.ExitStack() as stack:
        for checker in checkers(cluster, reference, outcome.options, events, fencing, stability):
            stack.enter_context(checking(cluster, reference, checker))
        if narrator is not None:
            stack.enter_context(cluster.world.observers.subscribed(narrator.replica_events()))
            fencing.listeners.append(narrator.fault)
        await _drive_checked(cluster, outcome, reference, stability, narrator)
    outcome.coverage.seen.update(fencing.counts)


async def _drive_checked(
    cluster: SimulatedCluster,
    outcome: RunOutcome,
    reference: ReferenceState,
    stability: Stability,
    narrator: Narrator | None,
) -> None:
    options, history = outcome.options, outcome.history
    injector = await open_run(cluster, outcome, reference, narrator)
    injector.listeners.append(stability.note)
    workload, endings = injector.workload, draw_endings(cluster.world)
    workload.watch_deletions(reference.deleted_below)
    schedule = FaultSchedule(
        injector, lambda: reference.elections >= ELECTIONS_MIN and outcome.truncations >= TRUNCATIONS_MIN
    )

    async def sample() -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            reference.sample()

    disks = (
        None
        if options.disks is None
        else DiskFaultSchedule(injector, options.disks, cluster.world.random("disk faults"))
    )
    older = OlderZooKeeper(injector, cluster.world.random("older ZooKeeper")) if options.older_zookeeper else None
    reference.is_calm = injector.is_calm
    if disks is not None:
        workload.other_clients.append(Rereader(cluster, workload, history).run)
    if options.loads is not None:
        scene = LoadScene(cluster, reference, workload, history, options, injector.injected)
        workload.other_clients += open_loads(scene)
    sampling, working = asyncio.create_task(sample()), asyncio.create_task(workload.run())
    try:
        await _run_faults(schedule, disks, older, history)
        if endings.is_quiet:
            await converge_without_load(injector, history)
        await converge(cluster, options, reference, history)
        if disks is not None:
            await disks.settle()
        if older is not None:
            await older.play()
            await converge(cluster, options, reference, history)
        await schedule.stage_what_is_missing()
        await converge(cluster, options, reference, history)
        if endings.one_stays_down:
            await live_with_one_down(injector, acknowledging_seconds(options.settings) + LOOKS * SAMPLE_SECONDS)
            await converge(cluster, options, reference, history)
        workload.in_a_hurry = True
        await injector.wait(lambda: workload.is_enough, HURRY_SECONDS_MAX)
        workload.stop.set()
        await working
        await _check_end(cluster, outcome, reference, workload)
    finally:
        sampling.cancel()
        working.cancel()
        outcome.findings += reference.findings + history.findings
        outcome.elections, outcome.isr_changes = reference.elections, reference.isr_changes
        if disks is not None:
            outcome.seconds_to_repair = disks.disk.seconds_to_repair
            outcome.seconds_to_full_isr = disks.disk.seconds_to_full_isr
        outcome.injected, outcome.readers = injector.injected, len(workload.readers)
        for task in (sampling, working):
            if task.done() and not task.cancelled() and task.exception() is not None:
                outcome.findings.append(crash_finding(task.exception() or AssertionError(), None))


async def _run_faults(
    schedule: FaultSchedule, disks: DiskFaultSchedule | None, older: OlderZooKeeper | None, history: History
) -> None:
    """Until the last fault is over and repaired."""
    also = [*([] if disks is None else [disks.run()]), *([] if older is None else [older.copy_sometime()])]
    if also:
        await asyncio.gather(schedule.run(), *also)
    else:
        await schedule.run()
    await schedule.repair()
    if disks is not None:
        for what in await disks.repair():
            history.find("I20", f"rot that no broker repaired: {what}")
        schedule.forgive_crashes()


async def _check_end(
    cluster: SimulatedCluster, outcome: RunOutcome, reference: ReferenceState, workload: Workload
) -> None:
    """What must hold once all faults are repaired and no client works any more."""
    history = outcome.history
    await take_records(cluster, workload, history)
    await converge(cluster, outcome.options, reference, history)  # a member that still stood still is outside by now
    await stay_idle(cluster, history)
    await compare_witness(cluster, reference, history)
    compare_replicas(cluster, workload, history)
    await compare_history(cluster, workload, history, knows_all_sends=True)
    await compare_settings(cluster, history)
    compare_lookups(workload, history)
    if outcome.options.disks is not None:
        await compare_recreated_topic(cluster, workload, history)
    outcome.findings += audit_disks(cluster, reference.states(), history.acked)
    if can_expire(outcome.options):
        await expire_all(cluster, outcome.options, reference, history)


def run_seed(
    seed: int,
    *,
    choices: RunChoices = ALL_DRAWN,
    on_line: Callable[[NarratedLine], None] | None = None,
) -> RunOutcome:
    """One run; violations are in `findings`. `on_line` gets each line of the run as it happens."""
    world, brokers = SimulatedWorld(seed), choices.brokers
    disks = draw_disk_options(world.random("disk options"), choices.disk_faults)
    loads = draw_load_options(world.random("load options"), choices.loads, brokers, disks is not None)
    if loads is not None:
        brokers = loads.brokers
    options = draw_options(world.random("options"), brokers).with_loads(loads).with_disks(disks)
    rng = world.random("older ZooKeeper options")
    options.older_zookeeper = is_drawn(rng, OLDER_ZOOKEEPER_SHARE, choices.older_zookeeper)
    options.disk_threads = is_drawn(world.random("disk thread options"), DISK_THREADS_SHARE, choices.disk_threads)
    return _perform(seed, brokers, options, on_line, _drive)


def run_beyond(
    seed: int, *, choices: RunChoices = ALL_DRAWN, on_line: Callable[[NarratedLine], None] | None = None
) -> RunOutcome:
    """One run that goes beyond the promise. `losses` are the lost records; `findings` the losses not detected."""
    rng = SimulatedWorld(seed).random("options")
    disaster = rng.choice(DISASTERS)
    options = beyond_options(draw_options(rng, choices.brokers), disaster)

    async def drive(cluster: SimulatedCluster, outcome: RunOutcome, narrator: Narrator | None) -> None:
        with contextlib.ExitStack() as stack:
            if narrator is not None:
                stack.enter_context(cluster.world.observers.subscribed(narrator.replica_events()))
            await drive_beyond(cluster, outcome, disaster, narrator)

    return _perform(seed, choices.brokers, options, on_line, drive)


def _perform(
    seed: int,
    brokers: int,
    options: RunOptions,
    on_line: Callable[[NarratedLine], None] | None,
    drive: Callable[[SimulatedCluster, RunOutcome, Narrator | None], Coroutine[Any, Any, None]],
) -> RunOutcome:
    cluster = SimulatedCluster(seed, brokers, settings=options.settings)
    if options.loads is not None and options.loads.open_files_max is not None:
        cluster.world.open_files_max = options.loads.open_files_max
    cluster.world.has_disk_threads = options.disk_threads
    narrator = None if on_line is None else Narrator(lambda: cluster.world.loop.elapsed, on_line)
    outcome = RunOutcome(seed, options, History(lambda: cluster.world.loop.elapsed))
    outcome.reached.watch(cluster)
    observers = cluster.world.observers
    try:
        with outcome.coverage.listening(observers, cluster.world.trace), observers.subscribed(outcome.reached.observe):
            cluster.world.run(drive(cluster, outcome, narrator), seconds_max=SECONDS_MAX)
    except (Exception, ProcessDead) as error:  # whatever it is, it is a finding of this seed
        if not isinstance(error, ProcessCrashed):
            outcome.findings.append(crash_finding(error, None))
    outcome.findings += [crash_finding(error, None, name) for name, error in cluster.world.crashes]
    for _, broker in sorted(cluster.brokers.items()):
        outcome.reached.add_settings(broker.config)
    for broker_id, api in sorted(set(cluster.failed_reads())):
        outcome.findings.append(CheckerFinding(invariant="crash", text=f"broker {broker_id} met a bug in {api}"))
    if options.disk_threads:
        outcome.injected[DISK_THREADS] += 1
    outcome.trace_hash = cluster.world.trace_hash
    outcome.virtual_seconds = cluster.world.loop.elapsed
    outcome.deliveries, outcome.callbacks = cluster.world.trace.kinds["net"], cluster.world.loop.callbacks_run
    outcome.narrator = narrator
    partitions = sum(count for count, *_ in options.topics.values())
    lines_max = (LINES_PER_SECOND_MAX + LINES_OF_A_PARTITION_MAX * partitions) * outcome.virtual_seconds
    if outcome.lines.total() > lines_max:
        text = f"too many log lines: {outcome.lines.most_common(3)}"
        outcome.findings.append(CheckerFinding(invariant="I36", text=text))
    return outcome
