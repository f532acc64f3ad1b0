"""Counters and gauges of a broker, as plain numbers.

Owns: the counters that the hot path raises (an integer addition each), the gauges that are computed only for a scrape,
and the name and meaning of each metric. Leaves to others: Prometheus (`prometheus_page`) and HTTP.

Names follow Kafka's beans in snake_case, so that known alerts carry over: UnderReplicatedPartitions of the
ReplicaManager is `minibroker_replica_manager_under_replicated_partitions`. Counters end in `_total`, units are seconds
and bytes.
"""

from typing import Annotated

import msgspec

from minibroker.protocol.wire.messages import APIS, ApiKey


class Metric(msgspec.Struct, frozen=True):
    """Name and meaning of one number."""

    name: str
    """Without the prefix `minibroker_` and, for a counter, without `_total`."""
    doc: str


class ApiCounter(msgspec.Struct):
    """Requests of one API since the start."""

    count: int = 0
    nanoseconds: int = 0
    """Time on the event loop; waiting is not counted."""


class BrokerCounters(msgspec.Struct):
    """Only ever raised, from the event loop."""

    bytes_in: Annotated[int, Metric("broker_topic_bytes_in", "Bytes of batches appended by this broker as leader.")] = 0
    bytes_out: Annotated[int, Metric("broker_topic_bytes_out", "Bytes of batches sent to consumers.")] = 0
    replication_bytes_out: Annotated[
        int, Metric("broker_topic_replication_bytes_out", "Bytes of batches sent to followers.")
    ] = 0
    records_in: Annotated[int, Metric("broker_topic_records_in", "Records appended by this broker as leader.")] = 0
    batches_in: Annotated[int, Metric("broker_topic_batches_in", "Batches appended by this broker as leader.")] = 0
    failed_produce: Annotated[
        int, Metric("broker_topic_failed_produce_partitions", "Partitions of produce requests answered with an error.")
    ] = 0
    failed_fetch: Annotated[
        int, Metric("broker_topic_failed_fetch_partitions", "Partitions of fetch requests answered with an error.")
    ] = 0
    isr_shrinks: Annotated[int, Metric("replica_manager_isr_shrinks", "Shrinks of in-sync replica sets led here.")] = 0
    isr_expands: Annotated[
        int, Metric("replica_manager_isr_expands", "Expansions of in-sync replica sets led here.")
    ] = 0
    truncations: Annotated[
        int, Metric("replica_manager_truncations", "Times that a follower here cut the tail of its log.")
    ] = 0
    truncations_below_high_watermark: Annotated[
        int,
        Metric(
            "replica_manager_truncations_below_high_watermark",
            "Truncations below the follower's own high watermark: never in clean operation.",
        ),
    ] = 0
    damaged_logs: Annotated[
        int, Metric("replica_manager_damaged_logs", "Replicas here with a log that was found damaged.")
    ] = 0
    repairs_begun: Annotated[
        int,
        Metric("replica_manager_repairs_begun", "Damaged replicas here that set their log aside to fetch it again."),
    ] = 0
    repairs_done: Annotated[
        int, Metric("replica_manager_repairs_done", "Damaged replicas here that are in sync again with a new log.")
    ] = 0
    salvaged_bytes: Annotated[
        int,
        Metric(
            "replica_manager_salvaged_bytes",
            "Bytes that replicas here took from their damaged logs, because the leader's log was damaged there.",
        ),
    ] = 0
    scrubbed_bytes: Annotated[int, Metric("log_scrubbed_bytes", "Bytes of logs read again by the scrubber.")] = 0
    scrub_rounds: Annotated[int, Metric("log_scrub_rounds", "Times that the scrubber has read all logs here.")] = 0
    scrubbed_damaged: Annotated[
        int, Metric("log_scrubbed_damaged_logs", "Damaged replicas here that the scrubber was the first to find.")
    ] = 0
    scrubbed_indexes: Annotated[
        int, Metric("log_scrubbed_indexes_made_again", "Damaged indexes that the scrubber found and rebuilt.")
    ] = 0
    fenced: Annotated[int, Metric("broker_fenced", "Times that this broker lost its place in ZooKeeper.")] = 0
    descriptor_shortages: Annotated[
        int, Metric("log_descriptor_shortages", "Disk calls that found no file descriptor left and are tried again.")
    ] = 0
    dead_brokers: Annotated[
        int,
        Metric(
            "controller_dead_brokers",
            "Brokers that this one, as controller or its successor, unregistered before their sessions ended.",
        ),
    ] = 0
    leader_elections: Annotated[
        int, Metric("replica_manager_leader_elections", "Elections that made this broker the leader of a partition.")
    ] = 0
    unclean_leader_elections: Annotated[
        int,
        Metric(
            "replica_manager_unclean_leader_elections",
            "Elections of this broker from outside the ISR: acknowledged records were lost.",
        ),
    ] = 0
    requests: dict[int, ApiCounter] = msgspec.field(default_factory=lambda: {key: ApiCounter() for key in APIS})
    """By API key."""

    def count_request(self, api_key: int, nanoseconds: int) -> None:
        counter = self.requests[api_key]
        counter.count += 1
        counter.nanoseconds += nanoseconds


class BrokerGauges(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a broker at one moment."""

    partitions: Annotated[int, Metric("replica_manager_partitions", "Replicas on this broker.")]
    leaders: Annotated[int, Metric("replica_manager_leaders", "Partitions that this broker leads.")]
    under_replicated_partitions: Annotated[
        int,
        Metric(
            "replica_manager_under_replicated_partitions",
            "Partitions led here with fewer in-sync replicas than replicas.",
        ),
    ]
    under_min_isr_partitions: Annotated[
        int,
        Metric(
            "replica_manager_under_min_isr_partitions",
            "Partitions led here with fewer in-sync replicas than min.insync.replicas: acks=all is refused.",
        ),
    ]
    at_min_isr_partitions: Annotated[
        int,
        Metric("replica_manager_at_min_isr_partitions", "Partitions led here that cannot lose one more replica."),
    ]
    offline_replicas: Annotated[
        int,
        Metric(
            "replica_manager_offline_replicas", "Replicas here that are offline: the log directory failed or is full."
        ),
    ]
    damaged_replicas: Annotated[
        int,
        Metric(
            "replica_manager_damaged_replicas",
            "Replicas here with a log known to be damaged: offline, or leading as the only one in sync.",
        ),
    ]
    waiting_produce_requests: Annotated[
        int, Metric("replica_manager_waiting_produce_requests", "acks=all requests waiting for in-sync replicas.")
    ]
    waiting_fetch_requests: Annotated[
        int, Metric("replica_manager_waiting_fetch_requests", "Fetches waiting for records.")
    ]
    max_lag: Annotated[
        int,
        Metric("replica_manager_max_lag", "Records by which the farthest follower of a partition led here is behind."),
    ]
    is_controller: Annotated[
        int, Metric("controller_active_controller_count", "1 on the controller; the sum over brokers must be 1.")
    ]
    offline_partitions: Annotated[
        int, Metric("controller_offline_partitions", "Partitions of the cluster without a leader, as known here.")
    ]
    live_brokers: Annotated[int, Metric("controller_live_brokers", "Live brokers of the cluster, as known here.")]
    topics: Annotated[int, Metric("controller_topics", "Topics of the cluster, as known here.")]
    is_fenced: Annotated[
        int, Metric("broker_is_fenced", "1 while this broker must not serve: ZooKeeper session not confirmed alive.")
    ]
    broker_epoch: Annotated[int, Metric("broker_epoch", "The broker epoch; -1 while not registered.")]
    connections: Annotated[int, Metric("network_connections", "Open connections of clients and brokers.")]
    log_bytes: Annotated[int, Metric("log_bytes", "Bytes of all segment files here.")]
    disk_free_bytes: Annotated[int, Metric("log_disk_free_bytes", "Free bytes where log.dirs lies.")]
    witness_age_seconds: Annotated[
        int,
        Metric(
            "broker_witness_age_seconds",
            "Time since ZooKeeper last accepted all of this broker's notes on what is committed (witness.interval.ms).",
        ),
    ]


class Readiness(msgspec.Struct, frozen=True):
    """Whether clients should use this broker."""

    is_ready: bool
    reason: str
    """In words, even if ready."""


API_LABELS: dict[int, str] = {key: ApiKey(key).name.lower() for key in APIS}
"""Value of the label `api`."""
