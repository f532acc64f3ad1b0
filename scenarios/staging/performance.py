"""Playing a story to its end, and whether that is the end it is told with.

Owns: one act from an empty cluster to the audit's verdict. Refuses to print.
"""

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from minibroker.broker.replication.state import TruncationRule
from minibroker.scenarios.staging.broker_logs import listening
from minibroker.scenarios.staging.disks import export
from minibroker.scenarios.staging.scenario import Act, Ending
from minibroker.scenarios.staging.simulated import SimulatedStage
from minibroker.scenarios.staging.stage import ScenarioFailed, ScenarioStep, Stage
from minibroker.scenarios.staging.verdict import AuditVerdict, audit_disks, write_facts


class Performance(msgspec.Struct, frozen=True, kw_only=True):
    """One act, played."""

    steps: tuple[ScenarioStep, ...]
    ending: Ending | None
    """None: it did not get there."""
    verdict: AuditVerdict
    problem: str | None
    """Where it went another way than it is told."""
    trace_hash: str | None
    """None: real processes, which no two times do the same."""

    @property
    def reached_its_end(self) -> bool:
        return self.problem is None


def perform(act: Act, rule: TruncationRule, listener: Callable[[ScenarioStep], None] = lambda _: None) -> Performance:
    """Play an act on simulated brokers; `listener` gets each step as it is told."""
    stage = SimulatedStage(act.cast, rule, listener)
    ending: Ending | None = None
    problem: str | None = None

    async def play() -> None:
        nonlocal ending, problem
        async with stage.opened():
            ending, problem = await play_script(act, stage)
            await stage.checkpointed()

    patch = contextlib.nullcontext() if act.patch is None else act.patch()
    stage.patched = act.patch is not None
    with listening(stage.note_broker_log), patch:
        stage.world.run(play())
    verdict = _audit(stage)
    return performance_of(stage, ending, problem, verdict, stage.world.trace_hash)


async def play_script(act: Act, stage: Stage) -> tuple[Ending | None, str | None]:
    """The end that the script reached, or where it went another way."""
    try:
        return await act.play(stage), None
    except ScenarioFailed as failure:
        return None, str(failure)


def performance_of(
    stage: Stage, ending: Ending | None, problem: str | None, verdict: AuditVerdict, trace_hash: str | None
) -> Performance:
    """All of it, judged."""
    return Performance(
        steps=tuple(stage.steps),
        ending=ending,
        verdict=verdict,
        problem=_problem_of(ending, verdict) or problem,
        trace_hash=trace_hash,
    )


def _problem_of(ending: Ending | None, verdict: AuditVerdict) -> str | None:
    """Whether the audit found what the script said it would."""
    if ending is None or verdict.findings == tuple(sorted(ending.findings)):
        return None
    expected = ", ".join(ending.findings) or "no finding"
    return f"the audit was to find {expected}, and found {', '.join(verdict.findings) or 'none'}"


def _audit(stage: SimulatedStage) -> AuditVerdict:
    with tempfile.TemporaryDirectory(prefix="minibroker-scenario-") as name:
        directory = Path(name)
        for broker in stage.cast.replicas:
            machine = stage.machine(broker)
            export(stage.world.machine(machine).storage, directory / machine)
        write_facts(directory, stage.acknowledged, stage.zookeeper_state())
        return audit_disks(directory)
