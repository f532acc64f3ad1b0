"""Retention without load: at the end of a run all records expire, and each replica must delete them soon (I46).

Owns: the setting that lets them expire, and the wait. It is the last thing in a run, because nothing is left to compare
then. Leaves to others: what retention must keep (`log_starts`, `retention`).

While clients write, each answer to a follower brings the newest log start and low watermark along, so a leader that
does not send them by themselves is not noticed.
"""

from minibroker.client.admin import AdminClient
from minibroker.client.errors import MinibrokerError
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.options import RunOptions

CHECK_INTERVAL = "log.retention.check.interval.ms"
CHECK_INTERVAL_MS_MAX = 1_000
"""Of a run that can wait for a check; by default one comes every five minutes."""
EXPIRED = {"retention.ms": "1"}
DELETED_SECONDS = 15
"""A check, an answer to each follower, its record and the next fetch, a periodic task of each: five seconds, and as
long again as the largest checkpoint interval of these runs keeps a segment from being closed after a truncation."""
ANSWER_MS = 5_000


def can_expire(options: RunOptions) -> bool:
    """Whether checks come often, and no clock was wrong: a file from the future does not expire."""
    interval_ms = int(options.settings.get(CHECK_INTERVAL, "300000"))
    return interval_ms <= CHECK_INTERVAL_MS_MAX and "clock" not in options.faults


async def expire_all(
    cluster: SimulatedCluster, options: RunOptions, reference: ReferenceState, history: History
) -> None:
    """No client writes any more."""
    try:
        async with AdminClient(bootstrap_servers=cluster.bootstrap_servers, runtime=cluster.client_runtime()) as admin:
            for topic in sorted(options.topics):
                await admin.alter_configs(EXPIRED, topic=topic, timeout_ms=ANSWER_MS)
    except MinibrokerError as error:
        history.find("I46", f"retention cannot be changed: {str(error)[:300]}")
        return
    try:
        await cluster.until(lambda: not _undeleted(cluster, reference), DELETED_SECONDS, "the deletion of all records")
    except AssertionError as error:
        for partition, facts in list(_undeleted(cluster, reference).items())[:2]:
            history.find("I46", str(error), partition, *facts)


def _undeleted(cluster: SimulatedCluster, reference: ReferenceState) -> dict[TopicPartition, list[str]]:
    """Replicas in sync that still hold records, and how far each has got."""
    found: dict[TopicPartition, list[str]] = {}
    for actual in reference.states():
        for broker_id in actual.members:
            replica = cluster.replica(broker_id, actual.partition.topic, actual.partition.partition)
            if replica is None or replica.state.is_offline:
                continue
            state, log = replica.state, replica.log
            if log.size_bytes or state.log_start_offset != state.log_end_offset:
                found.setdefault(actual.partition, []).append(
                    f"broker {broker_id}, {state.role.value}: {log.size_bytes} bytes from {log.segments[0].base_offset}"
                    f" on, log start {state.log_start_offset}, low watermark {state.low_watermark},"
                    f" log end {state.log_end_offset}"
                )
    return found
