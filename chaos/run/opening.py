"""Opens the cluster of a run, on any back end, and runs the whole thing on the event loop that it needs.

Owns: the settings of the brokers, and where their files lie. Leaves to others: all verbs (the harness).
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from minibroker.chaos.plan.fault_kinds import Backend
from minibroker.chaos.run.options import BROKERS, ChaosOptions
from minibroker.harness.cluster import SETTINGS
from minibroker.harness.compose import ComposeHarness
from minibroker.harness.processes import ProcessHarness
from minibroker.harness.simulated import SimulatedHarness
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.loop import VirtualLoop
from minibroker.testing import opening

T = TypeVar("T")
OWN_SETTINGS = SETTINGS | {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "3000",
    "auto.leader.rebalance.enable": "true",  # else one broker soon leads everything, and is the controller, too
    "leader.imbalance.check.interval.seconds": "3",
    "log.scrub.interval.ms": "2000",
    "log.scrub.bytes.per.second": "33554432",
}
"""Short times, so that much happens in a minute."""
VIRTUAL_SECONDS_MAX = 3_600.0
DISKS = "disks"


def open_cluster(options: ChaosOptions) -> Any:
    """A context manager that yields the harness. The files of processes lie in the run's own directory."""
    settings = OWN_SETTINGS | options.settings
    match options.backend:
        case "processes":
            own_disks = any(fault.kind == "disk-full" for fault in options.plan.faults)
            return ProcessHarness(
                BROKERS, settings, directory=options.out / DISKS, log_format="json", own_disks=own_disks
            )
        case "compose":
            return ComposeHarness(BROKERS, settings, name="minibroker-chaos", log_format="json")
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "run_on"
    return SimulatedHarness(SimulatedCluster(options.plan.seed, BROKERS, settings, loop), keeps_events=True)


def run_on(backend: Backend, work: Coroutine[Any, Any, T]) -> T:
    """In virtual time for simulated brokers, else in real time."""
    if backend == "simulated":
        return opening.run(work, virtual_seconds_max=VIRTUAL_SECONDS_MAX)
    return asyncio.run(work)
