"""Many simulated runs on all cores, and the sum of their results.

Owns: the worker processes, the order in which results are taken, and the check that the swarm as a whole covered
enough. Leaves to others: a single run (`simulation.swarm.run`).
"""

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterable
from itertools import chain
from multiprocessing import resource_tracker
from statistics import median
from typing import Annotated, Any

import msgspec

from minibroker.local_cluster.teardown import Ownership
from minibroker.simulation.swarm.choices import ALL_DRAWN, RunChoices
from minibroker.swarm_coverage.line_trace import LineTrace
from minibroker.swarm_coverage.report import CoverageReport, report

RUNS_TO_SEE_ALL = 200
"""A kind of event that this many runs never saw is a gap in the swarm; fewer runs may miss a rare one."""
RUNS_TO_SEE_RARE = 1_000
RUNS_TO_ENTER_ALL = 300
"""The same of a function, a typed event, an API, a setting, a call of the clients, in runs with loads."""
LOADED_RUNS_TO_SEE_ALL = 100
"""The same of what loads do: most do all of it in most of their runs."""
RUNS_PER_PROCESS = 100
"""Then a worker is replaced, so that memory leaked by earlier runs is freed."""
MUST_COUNT_SHARE = 0.95
FEW_RUNS = 20
"""Of which more than half must count: less is no accident of the draw."""
NAMED_MAX = 20


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run, as a worker process returns it."""

    seed: int
    findings: list[str]
    missing: list[str]
    """What it lacks to count as a run."""
    losses: int
    """Acknowledged records that are lost, all of them named: only with `beyond`."""
    trace_hash: str
    acknowledged: int
    read: int
    virtual_seconds: float
    real_seconds: float
    deliveries: int
    """Deliveries of bytes on the virtual network."""
    events: int
    """Callbacks of the event loop."""
    seen: dict[str, int]
    injected: dict[str, int]
    reached: dict[str, int] = {}
    """Events, APIs and settings, see `simulation/swarm/reached`."""
    lines: dict[str, list[int]] = {}
    """By path, the lines that ran in this worker for the first time."""
    seconds_to_repair: list[float] = []
    """From each disk damage until its broker is in every ISR again."""
    seconds_to_full_isr: list[float] = []
    """The same for disks that were lost entirely."""


class SwarmSummary(msgspec.Struct, kw_only=True):
    """The sum of many runs."""

    choices: RunChoices = ALL_DRAWN
    runs: int = 0
    loaded_runs: int = 0
    """Of them, those with loads."""
    counted: int = 0
    acknowledged: int = 0
    losses: int = 0
    runs_with_losses: int = 0
    virtual_seconds: float = 0.0
    run_seconds: float = 0.0
    """Real seconds of all cores together."""
    deliveries: int = 0
    events: int = 0
    seen: Counter[str] = msgspec.field(default_factory=Counter)
    injected: Counter[str] = msgspec.field(default_factory=Counter)
    reached: Counter[str] = msgspec.field(default_factory=Counter)
    lines: dict[str, set[int]] = msgspec.field(default_factory=dict)
    """By path, those that ran; empty if they were not traced."""
    seconds_to_repair: list[float] = msgspec.field(default_factory=list)
    seconds_to_full_isr: list[float] = msgspec.field(default_factory=list)
    failed: dict[int, Annotated[list[str], msgspec.Meta(min_length=1)]] = msgspec.field(default_factory=dict)
    not_counted: dict[int, list[str]] = msgspec.field(default_factory=dict)

    def add(self, result: RunResult) -> None:
        self.runs += 1
        self.loaded_runs += any(name.startswith("load ") for name in result.injected)
        self.counted += not result.missing
        self.acknowledged += result.acknowledged
        self.losses += result.losses
        self.runs_with_losses += result.losses > 0
        self.virtual_seconds += result.virtual_seconds
        self.run_seconds += result.real_seconds
        self.deliveries += result.deliveries
        self.events += result.events
        self.seen.update(result.seen)
        self.injected.update(result.injected)
        self.reached.update(result.reached)
        for path, lines in result.lines.items():
            self.lines.setdefault(path, set()).update(lines)
        self.seconds_to_repair += result.seconds_to_repair
        self.seconds_to_full_isr += result.seconds_to_full_isr
        if result.findings:
            self.failed[result.seed] = result.findings
        if result.missing:
            self.not_counted[result.seed] = result.missing

    @property
    def repairs(self) -> dict[str, str]:
        """How many disks were repaired, and after how many virtual seconds."""
        found = (
            ("damaged disks whole again", self.seconds_to_repair),
            ("of these lost disks, back in every ISR", self.seconds_to_full_isr),
        )
        return {
            what: f"{len(all_of)}, median {median(all_of):.1f} s, longest {max(all_of):.1f} s"
            for what, all_of in found
            if all_of
        }

    @property
    def never_seen(self) -> list[str]:
        """Kinds of event and of fault that no run had; empty if there are too few runs."""
        from minibroker.simulation.swarm.beyond import DISASTERS
        from minibroker.simulation.swarm.coverage import MUST_SEE, RARELY_SEEN
        from minibroker.simulation.swarm.faults.disk_options import CLUSTER_SEQUENCES, DISK_FAULTS, RARE_DISK_FAULTS
        from minibroker.simulation.swarm.loads.load_options import LOAD_ACTS
        from minibroker.simulation.swarm.loads.mirror_reader import READER_ACTS
        from minibroker.simulation.swarm.options import (
            ADDRESS_GONE,
            DISK_THREADS,
            FAULTS,
            OLDER_ZOOKEEPER,
            RARE_OLDER_ZOOKEEPER,
            SEQUENCES,
        )

        if self.runs < RUNS_TO_SEE_ALL:
            return []
        if self.choices.beyond:
            missing = [f"disaster {each}" for each in DISASTERS if not self.injected[f"disaster {each}"]]
            return missing + [each for each in READER_ACTS if not self.seen[each]]
        rare = (*RARE_DISK_FAULTS, *RARE_OLDER_ZOOKEEPER) if self.runs < RUNS_TO_SEE_RARE else ()
        kinds = [
            *(f"disk {each}" for each in DISK_FAULTS if each not in rare),
            *(f"cluster {each}" for each in CLUSTER_SEQUENCES),
        ]
        kinds = [] if self.choices.disk_faults is False else kinds
        older = () if self.choices.older_zookeeper is False else OLDER_ZOOKEEPER
        kinds += [f"cluster {each}" for each in older if each not in rare]
        kinds += [] if self.choices.disk_threads is False else [DISK_THREADS]
        kinds += [f"load {each}" for each in LOAD_ACTS] if self.loaded_runs >= LOADED_RUNS_TO_SEE_ALL else []
        kinds += [*(f"fault {each}" for each in (*FAULTS, ADDRESS_GONE)), *(f"sequence {each}" for each in SEQUENCES)]
        events = [*MUST_SEE, *(RARELY_SEEN if self.runs >= RUNS_TO_SEE_RARE else ())]
        return [each for each in events if not self.seen[each]] + [each for each in kinds if not self.injected[each]]

    @property
    def coverage(self) -> CoverageReport:
        """What it entered of all that there is."""
        from minibroker.simulation.swarm.reached import catalogue

        return report(catalogue(), self.reached, self.lines or None)

    @property
    def must_enter_all(self) -> bool:
        """Whether something that was never entered is a gap: runs without faulty disks, or without loads, leave out
        much on purpose."""
        choices = self.choices
        return choices.disk_faults is not False and not choices.beyond and self.loaded_runs >= RUNS_TO_ENTER_ALL

    @property
    def complaints(self) -> list[str]:
        """Why the swarm as a whole failed, one sentence each."""
        found = [f"seed {seed}: {findings[0]}" for seed, findings in sorted(self.failed.items())[:NAMED_MAX]]
        found += [f"never seen in {self.runs} runs: {each}" for each in self.never_seen]
        if self.must_enter_all:
            groups = self.coverage.grouped.items()
            found += [f"never entered in {self.runs} runs: {where}: {', '.join(names)}" for where, names in groups]
        share = MUST_COUNT_SHARE if self.runs >= RUNS_TO_SEE_ALL else 0.5 if self.runs >= FEW_RUNS else 0.0
        if self.counted < share * self.runs:
            found.append(f"only {self.counted} of {self.runs} runs count: {dict(list(self.not_counted.items())[:3])}")
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "event": "summary",
            "runs": self.runs,
            "counted": self.counted,
            "failed": {str(seed): findings for seed, findings in sorted(self.failed.items())},
            "not_counted": {str(seed): missing for seed, missing in sorted(self.not_counted.items())},
            "never_seen": self.never_seen,
            "losses": self.losses,
            "runs_with_losses": self.runs_with_losses,
            "acknowledged": self.acknowledged,
            "virtual_seconds": round(self.virtual_seconds, 3),
            "run_seconds": round(self.run_seconds, 3),
            "deliveries": self.deliveries,
            "events": self.events,
            "seen": dict(self.seen.most_common()),
            "injected": dict(self.injected.most_common()),
            "repairs": self.repairs,
            "coverage": self.coverage.as_json(),
        }


def run_one(job: tuple[int, RunChoices]) -> RunResult:
    """Run one seed in a worker."""
    from minibroker.simulation.swarm.run import run_beyond, run_seed

    seed, choices = job
    started = time.process_time()
    outcome = run_beyond(seed, choices=choices) if choices.beyond else run_seed(seed, choices=choices)
    return RunResult(
        seed=seed,
        findings=[str(finding) for finding in outcome.findings],
        missing=outcome.missing,
        losses=len(outcome.losses),
        trace_hash=outcome.trace_hash,
        acknowledged=outcome.acknowledged.total(),
        read=len(outcome.history.read),
        virtual_seconds=outcome.virtual_seconds,
        real_seconds=time.process_time() - started,
        deliveries=outcome.deliveries,
        events=outcome.callbacks,
        seen=dict(outcome.coverage.seen),
        injected=dict(outcome.injected),
        reached=dict(outcome.reached.counts),
        lines={} if _trace is None else _trace.new_lines(),
        seconds_to_repair=outcome.seconds_to_repair,
        seconds_to_full_isr=outcome.seconds_to_full_isr,
    )


def run_many(
    seeds: Iterable[int],
    *,
    workers: int | None = None,
    choices: RunChoices = ALL_DRAWN,
    trace_lines: bool = False,
) -> Generator[RunResult]:
    """Results as they arrive, in no order. Closing the iterator (or Ctrl-C, or SIGTERM) ends the workers, as many as
    there are cores by default. `trace_lines` needs slipcover."""
    left = iter(seeds)
    if (first := next(left, None)) is None:
        return
    context = multiprocessing.get_context("spawn")
    number = workers or len(os.sched_getaffinity(0))
    resource_tracker.ensure_running()  # its start lets Ctrl-C through again
    # Held until there is something to terminate. Workers, also later ones, inherit that: they import for half a second.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    pool = context.Pool(number, _begin_worker, (trace_lines,), maxtasksperchild=RUNS_PER_PROCESS)
    jobs = ((seed, choices) for seed in chain([first], left))  # there may be a billion
    with Ownership(pool.terminate):
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            yield from pool.imap_unordered(run_one, jobs)
            pool.close()
        finally:
            pool.terminate()
            pool.join()


_trace: LineTrace | None = None
"""Of this worker."""


def _begin_worker(trace_lines: bool) -> None:
    """Ctrl-C reaches the whole process group; the parent ends the workers."""
    global _trace
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _trace = LineTrace() if trace_lines else None
