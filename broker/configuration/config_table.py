"""Every setting of a broker, in one table: the struct below.

Owns: names, types, defaults, bounds and meaning. A field's name with '.' for '_' is the setting's name (Kafka's); its
default is the setting's default. Leaves to others: the rows by name (`settings`), and where values come from
(`config`).

Where Kafka writes -1 (or the largest i64) for 'no limit', so does the file; inside the program this is None, except for
the flush intervals, where NEVER is an ordinary number, larger than any log.
"""

from typing import Annotated, Literal

import msgspec

from minibroker.broker.configuration.config_key import ConfigKey
from minibroker.protocol.wire.messages import BrokerEndpoint

NEVER = 2**63 - 1
"""The flush intervals' 'never': syncing is left to the operating system, and durability to the other replicas."""

I32_MAX = 2**31 - 1
I64_MAX = 2**63 - 1
DAY_MS = 86_400_000
KIB = 1024
MIB = 1024 * 1024
INDEX_INTERVAL_BYTES_MAX = MIB
"""A read walks so far at most, and nothing else runs meanwhile: some tens of milliseconds for the smallest batches."""


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one broker process."""

    # ------------------------------------------------------------------------------------- identity and addresses
    broker_id: Annotated[
        int,
        ConfigKey(doc="Number of this broker; unique in the cluster, and never changed.", minimum=0, maximum=I32_MAX),
    ]
    log_dirs: Annotated[tuple[str, ...], ConfigKey(doc="Directory that holds the partitions. Exactly one for now.")]
    zookeeper_connect: Annotated[str, ConfigKey(doc="ZooKeeper servers, HOST:PORT,HOST:PORT.")]
    zookeeper_session_timeout_ms: Annotated[
        int,
        ConfigKey(
            doc="Silence after which ZooKeeper considers this broker dead, and after which the broker itself stops"
            " serving. ZooKeeper grants between 2 and 20 of its ticks.",
            minimum=100,
            maximum=I32_MAX,
        ),
    ] = 18_000
    zookeeper_digest_credentials: Annotated[
        str,
        ConfigKey(
            doc="USER:PASSWORD with which all brokers of a cluster authenticate to ZooKeeper. Other clients can then"
            " read what brokers write there, except the cluster's secret, and change nothing. Set it before the first"
            " start. Empty: any client that reaches ZooKeeper can do everything.",
            is_secret=True,
        ),
    ] = ""
    broker_failure_detection: Annotated[
        Literal["connection", "session"],
        ConfigKey(
            doc="How the failure of a broker is detected. connection: its connections broke and its address refuses, as"
            " a second broker confirms; it is unregistered and replaced within a fraction of a second. session: only by"
            " the end of its ZooKeeper session, as in Kafka. With both, a machine that is gone, paused or unreachable"
            " is replaced when its session ends. Set the same value on all brokers."
        ),
    ] = "connection"
    zookeeper_connection_timeout_ms: Annotated[
        int,
        ConfigKey(
            doc="How long a starting broker waits for ZooKeeper before it gives up with exit code 1.",
            minimum=0,
            maximum=I32_MAX,
        ),
    ] = 18_000
    listeners: Annotated[
        tuple[BrokerEndpoint, ...],
        ConfigKey(
            doc="Addresses the broker listens on, NAME://HOST:PORT,.. HOST 0.0.0.0 (or empty) is every interface; port"
            " 0 is any free port."
        ),
    ] = (BrokerEndpoint(listener="PLAINTEXT", host="127.0.0.1", port=9092),)
    advertised_listeners: Annotated[
        tuple[BrokerEndpoint, ...],
        ConfigKey(
            doc="Addresses that clients and other brokers connect to, NAME://HOST:PORT,.. One address per listener"
            " name, reachable from where its clients run. Empty: the same as listeners."
        ),
    ] = ()
    inter_broker_listener_name: Annotated[
        str,
        ConfigKey(
            doc="Listener that brokers use among themselves. Empty: the first of listeners. All brokers need the same"
            " name, so change it while all are stopped: brokers with different ones do not talk to each other."
        ),
    ] = ""
    listener_security_protocol_map: Annotated[
        dict[str, str],
        ConfigKey(
            doc="NAME:PROTOCOL,.. Only PLAINTEXT exists, and a name that is not listed uses it. Bind to addresses that"
            " only trusted machines reach."
        ),
    ] = {}

    # ---------------------------------------------------------------------------------------------------- topics
    num_partitions: Annotated[
        int,
        ConfigKey(doc="Partitions of a new topic, if its creation names no number.", minimum=1, maximum=10_000),
    ] = 1
    default_replication_factor: Annotated[
        int,
        ConfigKey(doc="Replicas of a new topic, if its creation names no number.", minimum=1, maximum=100),
    ] = 1
    min_insync_replicas: Annotated[
        int,
        ConfigKey(
            doc="In-sync replicas, the leader included, without which acks=all is refused and the high watermark"
            " stands still. With replication factor 3, 2 survives the loss of any one broker.",
            minimum=1,
            maximum=100,
            topic="min.insync.replicas",
            dynamic=True,
        ),
    ] = 1
    unclean_leader_election_enable: Annotated[
        bool,
        ConfigKey(
            doc="When no in-sync replica is alive, let any other lead: the partition is back sooner, and acknowledged"
            " records are lost.",
            topic="unclean.leader.election.enable",
        ),
    ] = False
    auto_create_topics_enable: Annotated[
        bool,
        ConfigKey(doc="Only false: topics are created by CreateTopics, so that a typing error creates none."),
    ] = False
    delete_topic_enable: Annotated[
        bool,
        ConfigKey(doc="Whether DeleteTopics is allowed."),
    ] = True
    message_max_bytes: Annotated[
        int,
        ConfigKey(
            doc="Largest record batch, with its header.",
            minimum=1024,
            maximum=64 * MIB,
            topic="max.message.bytes",
            dynamic=True,
        ),
    ] = 1_048_588

    # ----------------------------------------------------------------------------------------------- replication
    replica_lag_time_max_ms: Annotated[
        int,
        ConfigKey(
            doc="A follower that has not reached the leader's log end for this long leaves the in-sync replicas.",
            minimum=10,
            maximum=I32_MAX,
        ),
    ] = 30_000
    replica_fetch_wait_max_ms: Annotated[
        int,
        ConfigKey(doc="Longest wait of a follower's fetch that finds nothing.", minimum=0, maximum=I32_MAX),
    ] = 500
    replica_fetch_min_bytes: Annotated[
        int,
        ConfigKey(doc="Bytes for which a follower's fetch waits at the leader.", minimum=0, maximum=I32_MAX),
    ] = 1
    replica_fetch_max_bytes: Annotated[
        int,
        ConfigKey(
            doc="Bytes of one partition in one answer to a follower; the first batch may be larger.",
            minimum=1024,
            maximum=64 * MIB,
        ),
    ] = 1_048_576
    replica_fetch_response_max_bytes: Annotated[
        int,
        ConfigKey(
            doc="Bytes of one whole answer to a follower. A follower keeps two or three such buffers for each leader.",
            minimum=1024,
            maximum=64 * MIB,
        ),
    ] = 2_097_152
    replica_fetch_backoff_ms: Annotated[
        int,
        ConfigKey(doc="Pause of a follower after an error of a partition or a connection.", minimum=0, maximum=I32_MAX),
    ] = 1000
    replica_socket_timeout_ms: Annotated[
        int,
        ConfigKey(doc="A follower gives up on a fetch after this long and reconnects.", minimum=10, maximum=I32_MAX),
    ] = 30_000
    replica_high_watermark_checkpoint_interval_ms: Annotated[
        int,
        ConfigKey(doc="How often high watermarks are written to disk.", minimum=10, maximum=I32_MAX),
    ] = 5000
    replica_truncation_rule: Annotated[
        Literal["leader-epoch", "high-watermark"],
        ConfigKey(
            doc="How a new follower finds where its log diverges from the leader's. high-watermark is Kafka's rule"
            " before KIP-101: it loses acknowledged records, and exists to demonstrate that."
        ),
    ] = "leader-epoch"

    # ------------------------------------------------------------------------------------------------------ logs
    log_segment_bytes: Annotated[
        int,
        ConfigKey(
            doc="Size at which a new segment file begins.",
            minimum=KIB,
            maximum=I32_MAX,
            topic="segment.bytes",
            dynamic=True,
        ),
    ] = 1_073_741_824
    log_roll_ms: Annotated[
        int,
        ConfigKey(
            doc="Age, since its first record, at which a new segment begins.",
            minimum=1,
            maximum=I64_MAX,
            topic="segment.ms",
            dynamic=True,
        ),
    ] = 7 * DAY_MS
    log_retention_ms: Annotated[
        int | None,
        ConfigKey(
            doc="Segments with an older last append are deleted, below the high watermark only; the leader decides by"
            " its own clock. -1: never.",
            minimum=0,
            maximum=I64_MAX,
            topic="retention.ms",
            dynamic=True,
        ),
    ] = 7 * DAY_MS
    log_retention_bytes: Annotated[
        int | None,
        ConfigKey(
            doc="Oldest segments are deleted while a partition is larger, below the high watermark only. -1: never.",
            minimum=0,
            maximum=I64_MAX,
            topic="retention.bytes",
            dynamic=True,
        ),
    ] = None
    log_cleanup_policy: Annotated[
        Literal["delete"],
        ConfigKey(doc="Only delete: old segments are deleted. There is no compaction.", topic="cleanup.policy"),
    ] = "delete"
    log_retention_check_interval_ms: Annotated[
        int,
        ConfigKey(doc="Interval of retention checks.", minimum=1, maximum=I32_MAX),
    ] = 300_000
    log_index_interval_bytes: Annotated[
        int,
        ConfigKey(
            doc="Bytes of log between two entries of the offset index.",
            minimum=0,
            maximum=INDEX_INTERVAL_BYTES_MAX,
            topic="index.interval.bytes",
            dynamic=True,
        ),
    ] = 4096
    log_index_size_max_bytes: Annotated[
        int,
        ConfigKey(
            doc="Size of an index at which a new segment begins.",
            minimum=64,
            maximum=I32_MAX,
            topic="segment.index.bytes",
            dynamic=True,
        ),
    ] = 10_485_760
    log_segment_delete_delay_ms: Annotated[
        int,
        ConfigKey(
            doc="How long the files of a deleted segment are kept, renamed, before they are removed.",
            minimum=0,
            maximum=I32_MAX,
            topic="file.delete.delay.ms",
            dynamic=True,
        ),
    ] = 60_000
    log_flush_interval_messages: Annotated[
        int,
        ConfigKey(
            doc="With any number: a record does not count for the high watermark and is not acknowledged before it is"
            " synced to disk and survives power loss. Every number acts like 1: a sync begins at once and includes what"
            " came meanwhile. Default: no sync for each record, because the other replicas hold it.",
            minimum=1,
            maximum=NEVER,
            topic="flush.messages",
            dynamic=True,
        ),
    ] = NEVER
    log_flush_interval_ms: Annotated[
        int,
        ConfigKey(
            doc="The same as log.flush.interval.messages: any number has the effects described there, and every number"
            " acts like 1.",
            minimum=1,
            maximum=NEVER,
            topic="flush.ms",
            dynamic=True,
        ),
    ] = NEVER
    log_flush_offset_checkpoint_interval_ms: Annotated[
        int,
        ConfigKey(
            doc="How often recovery points and log start offsets are written to disk.", minimum=1, maximum=I32_MAX
        ),
    ] = 60_000
    log_scrub_bytes_per_second: Annotated[
        int,
        ConfigKey(
            doc="How fast the scrubber reads all logs in the background to find damage in bytes that no client reads."
            " 0: never.",
            minimum=0,
            maximum=1024 * MIB,
            dynamic=True,
        ),
    ] = MIB
    log_scrub_interval_ms: Annotated[
        int,
        ConfigKey(doc="Least time between the starts of two rounds of the scrubber.", minimum=1, maximum=I32_MAX),
    ] = 60_000
    witness_interval_ms: Annotated[
        int,
        ConfigKey(
            doc="How often leaders note in ZooKeeper what is committed.", minimum=1000, maximum=I32_MAX, dynamic=True
        ),
    ] = 30_000
    log_tail_cache_bytes: Annotated[
        int,
        ConfigKey(
            doc="Memory for the batches appended last, over all partitions: followers and consumers at the log end are"
            " served from it without reading the disk. 0: none.",
            minimum=0,
            maximum=1024 * MIB,
        ),
    ] = 24 * MIB
    producer_id_expiration_ms: Annotated[
        int,
        ConfigKey(
            doc="The state of an idempotent producer that wrote nothing for this long is dropped.",
            minimum=1,
            maximum=I32_MAX,
            dynamic=True,
        ),
    ] = DAY_MS

    # --------------------------------------------------------------------------------- connections and requests
    socket_request_max_bytes: Annotated[
        int,
        ConfigKey(
            doc="Largest frame of a request that carries records; the memory one connection may claim. Other requests"
            " are limited to 1 MiB, because decoded msgpack may grow seventy-fold.",
            minimum=64 * KIB,
            maximum=256 * MIB,
        ),
    ] = 16 * MIB
    queued_max_request_bytes: Annotated[
        int,
        ConfigKey(
            doc="Bytes of requests received and not yet answered, over all connections; above it no client is read. 24"
            " MiB of it, at most half, are for other brokers alone, so that replication survives a flood.",
            minimum=64 * KIB,
            maximum=4096 * MIB,
        ),
    ] = 48 * MIB
    max_connections: Annotated[
        int,
        ConfigKey(
            doc=(
                "Connections at a time. Further ones are closed at once, with a log line. The limit is lower, with a"
                " warning at the start, if the limit of open files does not allow so many besides logs and brokers."
            ),
            minimum=1,
            maximum=1_000_000,
        ),
    ] = 1000
    connections_max_idle_ms: Annotated[
        int,
        ConfigKey(doc="A connection without a request for this long is closed.", minimum=100, maximum=I32_MAX),
    ] = 600_000
    request_timeout_ms: Annotated[
        int,
        ConfigKey(
            doc="Deadline of a request from one broker to another, except follower fetches.", minimum=1, maximum=I32_MAX
        ),
    ] = 30_000
    fetch_max_bytes: Annotated[
        int,
        ConfigKey(doc="Largest answer to one fetch, whatever its own limits are.", minimum=1024, maximum=256 * MIB),
    ] = 57_671_680

    # -------------------------------------------------------------------------------------- shutdown and balance
    controlled_shutdown_enable: Annotated[
        bool,
        ConfigKey(doc="On SIGTERM, hand leadership over before stopping."),
    ] = True
    controlled_shutdown_max_retries: Annotated[
        int,
        ConfigKey(doc="Attempts to have the controller move the leaderships.", minimum=1, maximum=1000),
    ] = 3
    controlled_shutdown_retry_backoff_ms: Annotated[
        int,
        ConfigKey(doc="Pause between two of these attempts.", minimum=0, maximum=I32_MAX),
    ] = 5000
    auto_leader_rebalance_enable: Annotated[
        bool,
        ConfigKey(doc="The controller gives leadership back to the first replica of each assignment."),
    ] = True
    leader_imbalance_per_broker_percentage: Annotated[
        int,
        ConfigKey(
            doc="Share of a broker's preferred leaderships held elsewhere at which it does so.", minimum=0, maximum=100
        ),
    ] = 10
    leader_imbalance_check_interval_seconds: Annotated[
        int,
        ConfigKey(doc="Interval of this check.", minimum=1, maximum=I32_MAX),
    ] = 300

    # -------------------------------------------------------------------------------------------------- metrics
    metrics_listener: Annotated[
        str,
        ConfigKey(doc="HOST:PORT of /metrics (Prometheus), /healthz and /readyz, as in 127.0.0.1:9404. Empty: none."),
    ] = ""

    # --------------------------------------------------------------------------------------------- not a setting
    sources: dict[str, str] = {}
    """Source of each value that is not a default, by the setting's name."""

    @property
    def log_dir(self) -> str:
        return self.log_dirs[0]

    @property
    def inter_broker_listener(self) -> str:
        """Name of the inter-broker listener."""
        return self.inter_broker_listener_name or self.listeners[0].listener

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of the metrics endpoint; None: it is off."""
        if not self.metrics_listener:
            return None
        host, _, port = self.metrics_listener.rpartition(":")
        return host.strip("[]"), int(port)

    def source(self, name: str) -> str:
        """Source of a setting's value: 'default', or file and line, variable or option."""
        return self.sources.get(name, "default")
