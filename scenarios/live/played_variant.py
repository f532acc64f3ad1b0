"""Runs a variant on real processes: start, script, kill, audit.

Owns: one variant's data directory, which is removed at the end. Leaves to others: printing.
"""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from minibroker.audit.errors import AuditError
from minibroker.client.errors import MinibrokerError
from minibroker.local_cluster.cluster_file import ClusterFailed
from minibroker.local_cluster.teardown import Ownership, TeardownTimedOut
from minibroker.local_cluster.zookeeper_jars import MissingZooKeeper, zookeeper_jars
from minibroker.local_cluster.zookeeper_process import MissingJava, PortTaken, ZooKeeperFailed, find_java
from minibroker.observation.broker_queries import NoAnswer
from minibroker.runtime.ports import CoordinationError
from minibroker.scenarios.live.stage import LiveStage
from minibroker.scenarios.staging.played_variant import PlayedVariant, play_script, played_variant_of
from minibroker.scenarios.staging.scenario import Ending, TruncationRule, Variant
from minibroker.scenarios.staging.stage import ScenarioStep
from minibroker.scenarios.staging.verdict import audit_disks, write_facts
from minibroker.step_line import StepLine

CANNOT_PLAY = (
    AuditError,
    ClusterFailed,
    CoordinationError,
    MinibrokerError,
    MissingJava,
    MissingZooKeeper,
    NoAnswer,
    PortTaken,
    TeardownTimedOut,
    ZooKeeperFailed,
)
"""Errors that say in one sentence why a variant could not be played live."""


class EndedPlay(NamedTuple):
    """A variant whose processes have ended, before its audit."""

    stage: LiveStage
    ending: Ending | None
    problem: str | None
    directory: Path


def play_variant_live(
    variant: Variant,
    rule: TruncationRule,
    listener: Callable[[ScenarioStep], None],
    *,
    engine: str,
    report: Callable[[str], None] = lambda _: None,
    pause: Callable[[], None] | None = None,
) -> PlayedVariant:
    """`listener` gets each step, `report` the progress in between; `pause` is called in a thread after each step.
    Raises one of CANNOT_PLAY."""
    with tempfile.TemporaryDirectory(prefix="minibroker-scenario-") as name:
        play = asyncio.run(play_live(variant, rule, listener, Path(name), report, pause))
        with Ownership(lambda: None):  # SIGTERM acts as Ctrl-C, so that Spark's JVM ends
            return audited(play, engine, report)


async def play_live(
    variant: Variant,
    rule: TruncationRule,
    listener: Callable[[ScenarioStep], None],
    directory: Path,
    report: Callable[[str], None] = lambda _: None,
    pause: Callable[[], None] | None = None,
) -> EndedPlay:
    """Start, script and kill; the files stay in `directory`."""
    assert variant.live
    find_java()
    zookeeper_jars()
    stage = LiveStage(variant.setup, rule, listener, directory, report, pause)
    async with stage.opened():
        ending, problem = await play_script(variant, stage)
        await stage.checkpointed()
        state = await stage.state_at_the_end()
    write_facts(directory, stage.acknowledged, state)
    return EndedPlay(stage, ending, problem, directory)


def audited(play: EndedPlay, engine: str, report: Callable[[str], None] = lambda _: None) -> PlayedVariant:
    """The audit runs in this thread: Ctrl-C interrupts the main one only, and not while an event loop runs in it."""
    with StepLine(report) as steps:
        steps.tell(f"{engine} audit of the files")
        verdict = audit_disks(play.directory, engine)
    return played_variant_of(play.stage, play.ending, play.problem, verdict, trace_hash=None)
