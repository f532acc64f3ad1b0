"""How every run of the swarm begins, within the promise and beyond it.

Owns: the start of cluster, clients and the hand that breaks. Refuses to know what is broken, and who judges.
"""

from minibroker.simulation.checks.truth import Truth
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.hand import Hand
from minibroker.simulation.swarm.narrator import Narrator
from minibroker.simulation.swarm.outcome import Outcome
from minibroker.simulation.swarm.workload import Workload


async def open_run(cluster: SimulatedCluster, outcome: Outcome, truth: Truth, narrator: Narrator | None) -> Hand:
    """The hand, once the cluster is ready and has its topics; the outcome watches from here on."""
    options = outcome.options
    workload = Workload(cluster, options, outcome.history, cluster.world.random("workload"))
    hand = Hand(cluster, options, truth, workload, cluster.world.random("faults"))
    outcome.events, outcome.acknowledged = hand.history, workload.acknowledged
    outcome.coverage.watch(truth)
    if narrator is not None:
        hand.listeners.append(narrator.fault)
    cluster.start_all()
    await cluster.until_ready()
    await workload.create_topics()
    return hand
