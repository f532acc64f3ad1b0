"""Runs cases on peers, in turn, and keeps the results.

Owns: the order of rounds, the warm-up, starting and stopping the clusters, and that everything is stopped whatever
happens. Leaves to others: the single cases.

Both clusters run at the same time, and only one of them has load: an idle one costs some percent of a core, while a
stopped one would begin each round with a cold JVM. A round begins when both are at rest; otherwise a JVM that still
compiles what the last round called would slow down the other peer. The peer that begins changes with every alternation,
so that a machine that becomes slower or faster favours neither.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from minibroker.bench.case import Case, CaseFailed, Round
from minibroker.bench.document import CaseResult, Document, FailedRound, RoundResult
from minibroker.bench.load_process import run_load
from minibroker.bench.machine import describe_commit, describe_machine
from minibroker.bench.peers.peer import Peer, PeerFailed
from minibroker.bench.process_cost import Meter

WARM_BYTES = 1_000_000_000
WARM_SECONDS_MIN, WARM_SECONDS_MAX = 30.0, 60.0
"""Until both 1 GB and 30 s are reached, at most a minute: a JVM compiles what was called often enough; meanwhile its
CPU a GB falls to a quarter."""
WARM_RECORDS = {16_384: 25_000, 131_072: 100_000}
"""Records per step by batch size: small batches, too, because many calls happen once per batch."""
WARM_RECORD_BYTES = 1_000
IDLE_SECONDS = 5.0
"""Clock ticks of 10 ms over this time resolve 0.2 % of a core."""
REST_SECONDS, REST_SECONDS_MAX = 1.0, 20.0
"""How long clusters are measured, and how long they may take to come to rest: a JVM has needed ten seconds."""
REST_SHARE = 0.08
"""Of a core, per cluster; at rest Kafka's used 2 to 4 %, minibroker's 2 to 3 %."""
ATTEMPTS = 2
"""A failed round is repeated once; then the alternation continues without it."""

PeerMaker = Callable[[str, Path], Peer]
"""(name of the peer, an empty folder) -> a cluster that is not running yet."""


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run."""

    cases: Sequence[Case]
    peers: tuple[str, ...]
    alternations: int
    volume: float
    warm: bool
    directory: Path
    """Clusters and scratch files; each run removes what it created."""


class Runner:
    """One run. `document` holds the results so far, so that an interrupted run can still be reported."""

    def __init__(
        self,
        plan: RunPlan,
        make_peer: PeerMaker,
        progress: Callable[[str], None],
        settle: Callable[[], None] = os.sync,
    ) -> None:
        """`settle` is called before each round, so that data left unwritten by an earlier round does not affect this
        one."""
        self._settle = settle
        self._plan = plan
        self._make_peer = make_peer
        self._progress = progress
        self._shared: dict[str, Peer] = {}
        self._kept: dict[str, dict[str, str]] = {}
        self._configuration: dict[str, dict[str, str]] = {}
        self._results: dict[str, CaseResult] = {}
        self._commit = describe_commit()
        self._started = _now()

    def document(self) -> Document:
        plan = self._plan
        return Document(
            commit=self._commit,
            started=self._started,
            machine=describe_machine(plan.directory),
            configuration=self._configuration,
            options={"alternations": str(plan.alternations), "volume": f"{plan.volume:g}", "warm": str(plan.warm)},
            cases=[case for case in self._results.values() if case.rounds or case.failures],
        )

    async def run(self, after_round: Callable[[Document], None]) -> None:
        """Run everything. `after_round` is called whenever there are new results. Raises PeerFailed."""
        sharing = [case for case in self._plan.cases if not case.own_cluster]
        separate = [case for case in self._plan.cases if case.own_cluster]
        try:
            if sharing:
                await self._start_shared(sharing)
            for index, case in enumerate(sharing):
                await self._run_case(case, f"{index + 1}/{len(self._plan.cases)}", after_round)
            await self._stop_shared()
            for index, case in enumerate(separate, start=len(sharing)):
                await self._run_case(case, f"{index + 1}/{len(self._plan.cases)}", after_round)
        finally:
            await self._stop_shared()

    # --------------------------------------------------------------------------------------------------- clusters
    async def _start_shared(self, cases: Iterable[Case]) -> None:
        wanted = {peer for case in cases for peer in case.peers}
        for name in tuple(self._plan.peers):
            if name in wanted:
                self._progress(f"starting {name}")
                peer = self._shared[name] = self._make_peer(name, self._plan.directory / name)
                self._kept[name] = {}
                await peer.start()
                self._configuration[name] = {"version": peer.version} | peer.configuration()
        if self._plan.warm:
            for name, peer in tuple(self._shared.items()):
                await self._warm(name, peer)
        await self._measure_idle()

    async def _warm(self, name: str, peer: Peer) -> None:
        await peer.make_topic("warm-up")
        started, written, elapsed_s = time.monotonic(), 0, 0.0
        while elapsed_s < WARM_SECONDS_MAX and (written < WARM_BYTES or elapsed_s < WARM_SECONDS_MIN):
            for batch_bytes, records in WARM_RECORDS.items():
                self._progress(f"warming {name}: {written / 1e6:.0f} MB in {elapsed_s:.0f} s")
                sizes = {"records": records, "record_bytes": WARM_RECORD_BYTES, "batch_bytes": batch_bytes}
                await run_load(peer, "produce", topic="warm-up", **sizes)
                written += records * WARM_RECORD_BYTES
            await run_load(peer, "consume", topic="warm-up", records=max(WARM_RECORDS.values()))
            elapsed_s = time.monotonic() - started
        await peer.delete_topic("warm-up")

    async def _measure_idle(self) -> None:
        """The cost of an idle cluster, as part of its description."""
        await self._come_to_rest("idle")
        for name, busy in (await self._busy(IDLE_SECONDS)).items():
            self._configuration[name]["idle, share of a core"] = f"{busy:.1%}"

    async def _come_to_rest(self, at: str) -> None:
        verb = "is" if len(self._shared) == 1 else "are"
        self._progress(f"{at}: waiting until {' and '.join(self._shared)} {verb} at rest")
        deadline = time.monotonic() + REST_SECONDS_MAX
        while time.monotonic() < deadline and max((await self._busy(REST_SECONDS)).values()) > REST_SHARE:
            pass

    async def _busy(self, seconds: float) -> dict[str, float]:
        """The share of a core that each shared cluster uses over this time."""
        meters = {name: Meter(peer.pids()) for name, peer in self._shared.items()}
        await asyncio.sleep(seconds)
        return {name: sum(cost.cpu_s for cost in meter.read()) / seconds for name, meter in meters.items()}

    async def _stop_shared(self) -> None:
        stopping, self._shared = self._shared, {}
        self._progress(f"stopping {' and '.join(stopping)}" if stopping else "")
        await asyncio.gather(*(peer.stop() for peer in stopping.values()))

    # ----------------------------------------------------------------------------------------------------- rounds
    async def _run_case(self, case: Case, place: str, after_round: Callable[[Document], None]) -> None:
        result = CaseResult(
            name=case.name,
            title=case.title,
            figure=case.figure,
            unit=case.unit,
            higher_is_better=case.higher_is_better,
            rounds=[],
        )
        self._results[case.name] = result
        peers = [peer for peer in self._plan.peers if peer in case.peers]
        rounds = case.rounds if case.rounds is not None else self._plan.alternations
        for number in range(rounds):
            for name in peers if number % 2 == 0 else reversed(peers):
                at = f"case {place} {case.name}, round {number + 1}/{rounds}, {name}"
                await self._round_with_retry(case, name, number, at, result)
                after_round(self.document())

    async def _round_with_retry(self, case: Case, name: str, number: int, at: str, result: CaseResult) -> None:
        for attempt in range(ATTEMPTS):
            self._progress(at + (" again" if attempt else ""))
            try:
                result.rounds.append(await self._round(case, name, number, at, attempt))
                return
            except (CaseFailed, PeerFailed) as error:
                result.failures.append(FailedRound(name, number, str(error)))

    async def _round(self, case: Case, name: str, number: int, at: str, attempt: int) -> RoundResult:
        def progress(what: str) -> None:
            self._progress(f"{at}: {what}")

        async def settle() -> None:
            await asyncio.to_thread(self._settle)

        await settle()
        if self._plan.warm and not case.own_cluster:
            await self._come_to_rest(at)
        scratch = self._plan.directory / "round"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        peer = self._make_peer(name, scratch / name) if case.own_cluster else self._shared[name]
        this_round = Round(
            number=number,
            attempt=attempt,
            volume=self._plan.volume,
            directory=scratch,
            kept={} if case.own_cluster else self._kept[name],
            progress=progress,
            settle=settle,
        )
        started, clock, load_average = _now(), time.monotonic(), os.getloadavg()[0]
        try:
            found = await case.run(peer, this_round)
        finally:
            if case.own_cluster:
                self._configuration.setdefault(name, {"version": peer.version} | peer.configuration())
                await peer.stop()
            shutil.rmtree(scratch, ignore_errors=True)
        return RoundResult(
            peer=name,
            number=number,
            started=started,
            seconds=round(time.monotonic() - clock, 1),
            load_average=round(load_average, 1),
            figures={figure: round(value, 4) for figure, value in found.figures.items()},
            costs=found.costs,
            notes=found.notes,
            details=found.details,
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
