"""Plays a variant to its end, and checks whether it ends as scripted.

Owns: one variant from an empty cluster to the audit's verdict. Leaves to others: printing.
"""

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from minibroker.broker.replication.state import TruncationRule
from minibroker.scenarios.staging.broker_events import listening
from minibroker.scenarios.staging.disks import export
from minibroker.scenarios.staging.scenario import Ending, Variant
from minibroker.scenarios.staging.simulated import SimulatedStage
from minibroker.scenarios.staging.stage import ScenarioFailed, ScenarioStep, Stage
from minibroker.scenarios.staging.verdict import AuditVerdict, audit_disks, write_facts


class PlayedVariant(msgspec.Struct, frozen=True, kw_only=True):
    """One variant, played."""

    steps: tuple[ScenarioStep, ...]
    ending: Ending | None
    """None: the script failed before its end."""
    verdict: AuditVerdict
    problem: str | None
    """How the variant deviated from its script."""
    trace_hash: str | None
    """None: real processes, where no two runs are the same."""

    @property
    def reached_its_end(self) -> bool:
        return self.problem is None


def play_variant(
    variant: Variant, rule: TruncationRule, listener: Callable[[ScenarioStep], None] = lambda _: None
) -> PlayedVariant:
    """Play a variant on simulated brokers; `listener` gets each step as it happens."""
    stage = SimulatedStage(variant.setup, rule, listener)
    ending: Ending | None = None
    problem: str | None = None

    async def play() -> None:
        nonlocal ending, problem
        async with stage.opened():
            ending, problem = await play_script(variant, stage)
            await stage.checkpointed()

    patch = contextlib.nullcontext() if variant.patch is None else variant.patch()
    stage.patched = variant.patch is not None
    with listening(stage.world.observers, stage.note_broker_log), patch:
        stage.world.run(play())
    verdict = _audit(stage)
    return played_variant_of(stage, ending, problem, verdict, stage.world.trace_hash)


async def play_script(variant: Variant, stage: Stage) -> tuple[Ending | None, str | None]:
    """The ending that the script reached, or how it deviated."""
    try:
        return await variant.play(stage), None
    except ScenarioFailed as failure:
        return None, str(failure)


def played_variant_of(
    stage: Stage, ending: Ending | None, problem: str | None, verdict: AuditVerdict, trace_hash: str | None
) -> PlayedVariant:
    """The steps and the ending, compared with the audit's verdict."""
    return PlayedVariant(
        steps=tuple(stage.steps),
        ending=ending,
        verdict=verdict,
        problem=_problem_of(ending, verdict) or problem,
        trace_hash=trace_hash,
    )


def _problem_of(ending: Ending | None, verdict: AuditVerdict) -> str | None:
    """How the audit's findings differ from the expected ones; None if they do not."""
    if ending is None or verdict.findings == tuple(sorted(ending.findings)):
        return None
    expected = ", ".join(ending.findings) or "no finding"
    return f"the audit should find {expected}, and found {', '.join(verdict.findings) or 'none'}"


def _audit(stage: SimulatedStage) -> AuditVerdict:
    with tempfile.TemporaryDirectory(prefix="minibroker-scenario-") as name:
        directory = Path(name)
        for broker in stage.setup.replicas:
            machine = stage.machine(broker)
            export(stage.world.machine(machine).storage, directory / machine)
        write_facts(directory, stage.acknowledged, stage.zookeeper_state())
        return audit_disks(directory)
