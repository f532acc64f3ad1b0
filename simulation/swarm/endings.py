"""What some runs do between their faults and their last checks: the load stops, or one broker stays down.

Owns: which runs do it, from random streams of its own, so that all others keep their
meaning; and how long it lasts.
Leaves to others: the bounds of failover and of acknowledgements, which checkers hold (`failover`, `acknowledging`).
"""

from msgspec import Struct

from minibroker.simulation.checks.control.failover import settling_seconds
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector
from minibroker.simulation.swarm.final_checks import compare_replicas, out_of_sync
from minibroker.simulation.swarm.history import History
from minibroker.simulation.world.world import SimulatedWorld

QUIET_SHARE = 0.3
STANDING_SHARE = 0.3
SETTLED_SECONDS_MAX = 12.0
"""The outcome of every send is known by then: the longest delivery timeout is 8 s."""
NOTICED_SECONDS = 0.2
"""By then the checkers have seen that all is in order."""
QUIET_SECONDS_MAX = 40.0
"""As long as a cluster under load has (`final_checks.converge`)."""


class Endings(Struct, frozen=True):
    """One run's draw."""

    is_quiet: bool
    """The load stops right after the last fault; the cluster must converge by itself."""
    one_stays_down: bool
    """A broker is killed and not started for a while; the others must acknowledge."""


def draw_endings(world: SimulatedWorld) -> Endings:
    is_quiet = world.random("without load").random() < QUIET_SHARE
    return Endings(is_quiet, world.random("standing fault").random() < STANDING_SHARE)


async def converge_without_load(injector: FaultInjector, history: History) -> None:
    """I36: no client writes or changes anything; every replica returns to the ISR and learns the high watermark."""
    cluster, workload = injector.cluster, injector.workload
    workload.may_write.clear()
    await injector.wait(lambda: not history.open_sends, SETTLED_SECONDS_MAX)
    injector.note("the load has stopped")
    began = cluster.world.loop.elapsed
    seconds = QUIET_SECONDS_MAX + cluster.held_seconds()
    if not await injector.wait(lambda: not _unequal(injector), seconds):
        text = f"without load the cluster does not converge within {seconds:.0f} s"
        history.find("I36", text, None, *_unequal(injector)[:3])
    else:
        compare_replicas(cluster, workload, history)
    injector.note("the load goes on", f"{cluster.world.loop.elapsed - began:.2f}")
    workload.may_write.set()


def _unequal(injector: FaultInjector) -> list[str]:
    """Partitions out of sync, and those whose replicas differ in log end or high watermark."""
    cluster = injector.cluster
    found = out_of_sync(cluster, injector.options, injector.reference)
    for partition, replicas in sorted(cluster.assignments().items()):
        if injector.reference.is_promised(partition.topic):
            ends = {b: _ends(cluster, b, partition.topic, partition.partition) for b in replicas}
            if any(end is None or end[0] != end[1] for end in ends.values()) or len(set(ends.values())) != 1:
                found.append(f"{partition} (end, high watermark) by broker: {ends}")
    return found


def _ends(cluster: SimulatedCluster, broker_id: int, topic: str, number: int) -> tuple[int, int] | None:
    replica = cluster.replica(broker_id, topic, number)
    return None if replica is None else (replica.state.log_end_offset, replica.state.high_watermark)


async def live_with_one_down(injector: FaultInjector, seconds: float) -> None:
    """I37: one broker is dead for that long, and the rest must lead and acknowledge. It dies once nothing of the faults
    lasts: only then does the short bound hold of a leader that refuses connections (`FailoverChecker`)."""
    await injector.wait(lambda: False, settling_seconds(injector.options.settings) + NOTICED_SECONDS)
    victim = injector.world.random("standing victim").choice(injector.cluster.broker_ids)
    if injector.kill(victim):
        injector.note("stays down", victim, f"{seconds:.1f}")
        await injector.wait(lambda: False, seconds)
        injector.start(victim)
