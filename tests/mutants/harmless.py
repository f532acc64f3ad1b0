"""Six patches that break no promise. A checker that reports one of them is wrong.

Each changes something that a run does or logs: a log line, pauses, an order, a size.
"""

from tests.mutants.mutant import Edit, Mutant

PATCHES = (
    Mutant(
        name="N1",
        title="a renamed log line",
        origin="harmless by design",
        rule="log lines are for people",
        breaks=(),
        edits=(
            Edit("protocol.events.replica_events", "truncated from {end_before} to", "cut from {end_before} down to"),
        ),
    ),
    Mutant(
        name="N2",
        title="a refused proposal is repeated after 200 ms, not 50",
        origin="harmless by design",
        rule="the pause before a repetition is free to choose within the bounds of liveness",
        breaks=(),
        edits=(Edit("broker.replication.isr", "PROPOSAL_RETRY_MS = 50\n", "PROPOSAL_RETRY_MS = 200\n"),),
    ),
    Mutant(
        name="N3",
        title="connections to an unreachable leader are tried again after longer pauses",
        origin="harmless by design",
        rule="the pauses between connection attempts are free to choose within the bounds of liveness",
        breaks=(),
        edits=(
            Edit(
                "broker.replicas.replica_fetcher",
                "RECONNECT_MS = (50, 100, 200, 400, 800, 1_000)\n",
                "RECONNECT_MS = (80, 160, 320, 640, 1_000)\n",
            ),
        ),
    ),
    Mutant(
        name="N4",
        title="one fetch less in flight: a follower with new records waits for its delayed fetch",
        origin="harmless by design",
        rule="how many fetches are in flight is a matter of speed",
        breaks=(),
        edits=(Edit("broker.replicas.replica_fetcher", "FETCHES_IN_FLIGHT_MAX = 2\n", "FETCHES_IN_FLIGHT_MAX = 1\n"),),
    ),
    Mutant(
        name="N5",
        title="high watermarks are checkpointed twice as often, and lag is checked less often",
        origin="harmless by design",
        rule="the intervals of periodic tasks are free to choose within the bounds of liveness",
        breaks=(),
        edits=(
            Edit(
                "broker.replicas.periodic_tasks",
                "            checkpoint_ms = config.replica_high_watermark_checkpoint_interval_ms\n",
                "            checkpoint_ms = config.replica_high_watermark_checkpoint_interval_ms // 2\n",
            ),
            Edit("broker.replicas.periodic_tasks", "ISR_RETRY_MS = 500\n", "ISR_RETRY_MS = 700\n"),
        ),
    ),
    Mutant(
        name="N6",
        title="a broken liveness connection is reopened later, and one confirmer is asked at a time",
        origin="hardening rule 11",
        rule="how soon a failure is confirmed is a matter of speed",
        breaks=(),
        edits=(
            Edit(
                "controller.detection.liveness_connection", "REDIAL_SECONDS_MIN = 0.01\n", "REDIAL_SECONDS_MIN = 0.04\n"
            ),
            Edit("controller.detection.failure_detection", "CONFIRMERS_MAX = 3\n", "CONFIRMERS_MAX = 1\n"),
        ),
    ),
)
