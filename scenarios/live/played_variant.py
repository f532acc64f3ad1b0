"""Runs a variant on real processes: start, script, kill, audit.

Owns: one variant's data directory, which is removed at the end. Leaves to others: printing.
"""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from minibroker.audit.errors import AuditError
from minibroker.client.errors import MinibrokerError
from minibroker.local_cluster.cluster_file import ClusterFailed
from minibroker.local_cluster.teardown import TeardownTimedOut
from minibroker.local_cluster.zookeeper_jars import MissingZooKeeper, zookeeper_jars
from minibroker.local_cluster.zookeeper_process import MissingJava, PortTaken, ZooKeeperFailed, find_java
from minibroker.observation.broker_queries import NoAnswer
from minibroker.runtime.ports import CoordinationError
from minibroker.scenarios.live.stage import LiveStage
from minibroker.scenarios.staging.played_variant import PlayedVariant, play_script, played_variant_of
from minibroker.scenarios.staging.scenario import TruncationRule, Variant
from minibroker.scenarios.staging.stage import ScenarioStep
from minibroker.scenarios.staging.verdict import audit_disks, write_facts

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


async def play_variant_live(
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
    assert variant.live
    find_java()
    zookeeper_jars()
    with tempfile.TemporaryDirectory(prefix="minibroker-scenario-") as name:
        stage = LiveStage(variant.setup, rule, listener, Path(name), report, pause)
        async with stage.opened():
            ending, problem = await play_script(variant, stage)
            await stage.checkpointed()
            state = await stage.state_at_the_end()
        report(f"{engine} audit of the files")
        write_facts(Path(name), stage.acknowledged, state)
        verdict = await asyncio.to_thread(audit_disks, Path(name), engine)
    return played_variant_of(stage, ending, problem, verdict, trace_hash=None)
