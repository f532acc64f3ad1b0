"""How every run of the swarm begins, within the promise and beyond it.

Owns: the start of cluster, clients and fault injector. Leaves to others: the faults and the checkers.
"""

from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector
from minibroker.simulation.swarm.narrator import Narrator
from minibroker.simulation.swarm.outcome import RunOutcome
from minibroker.simulation.swarm.workload import Workload


async def open_run(
    cluster: SimulatedCluster, outcome: RunOutcome, reference: ReferenceState, narrator: Narrator | None
) -> FaultInjector:
    """The injector, once the cluster is ready and has its topics; the outcome counts from here on."""
    options = outcome.options
    workload = Workload(cluster, options, outcome.history, cluster.world.random("workload"))
    injector = FaultInjector(cluster, options, reference, workload, cluster.world.random("faults"))
    outcome.events, outcome.acknowledged = injector.history, workload.acknowledged
    outcome.coverage.watch(reference)
    if narrator is not None:
        injector.listeners.append(narrator.fault)
    cluster.start_all()
    await cluster.until_ready()
    await workload.create_topics()
    return injector
