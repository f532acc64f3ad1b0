"""Runs an act on real processes: start, script, kill, audit.

Owns: one act's data directory, which is removed at the end. Leaves to others: printing.
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
from minibroker.scenarios.staging.played_act import PlayedAct, play_script, played_act_of
from minibroker.scenarios.staging.scenario import Act, TruncationRule
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
"""Errors that say in one sentence why an act could not be played live."""


async def perform_live(
    act: Act,
    rule: TruncationRule,
    listener: Callable[[ScenarioStep], None],
    *,
    engine: str,
    report: Callable[[str], None] = lambda _: None,
    pause: Callable[[], None] | None = None,
) -> PlayedAct:
    """`listener` gets each step, `report` the progress in between; `pause` is called in a thread after each step.
    Raises one of CANNOT_PLAY."""
    assert act.live
    find_java()
    zookeeper_jars()
    with tempfile.TemporaryDirectory(prefix="minibroker-scenario-") as name:
        stage = LiveStage(act.cast, rule, listener, Path(name), report, pause)
        async with stage.opened():
            ending, problem = await play_script(act, stage)
            await stage.checkpointed()
            state = await stage.state_at_the_end()
        report(f"{engine} audit of the files")
        write_facts(Path(name), stage.acknowledged, state)
        verdict = await asyncio.to_thread(audit_disks, Path(name), engine)
    return played_act_of(stage, ending, problem, verdict, trace_hash=None)
