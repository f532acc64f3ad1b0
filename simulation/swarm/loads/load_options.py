"""The loads of one run, drawn from a random stream of its own, so that seeds without them keep their meaning.

Owns: the names of the loads, the topics they use with their settings, and the draw. Leaves to others: to do them.
"""

import random

import msgspec

from minibroker.protocol.ids import TopicPartition

LOADS = (
    "record_writer",
    "record_reader",
    "settings_changer",
    "describer",
    "topic_maker",
    "refused_caller",
    "name_holder",
    "name_remover",
)
"""What a client does; each is a module of this folder."""
LOADS_MIN = 1
LOADS_SHARE = 0.25
"""Of the runs whose seed decides. A run with loads takes four times as long as one without, so half of the time is
theirs."""

LOAD_ACTS = (
    "try_send",
    "send",
    "send that waited",
    "send_many",
    "deliveries awaited together",
    "add_done_callback",
    "metrics of a producer",
    "partitions_for",
    "flush",
    "flush that told of lost records",
    "close that gave up records",
    "call cancelled",
    "wait for memory given up",
    "acknowledged record",
    "record above max_request_size refused",
    "record above max.message.bytes refused",
    "record to no partition refused",
    "getmany",
    "getone",
    "async for",
    "getmany_batches",
    "position",
    "connection_state",
    "seek",
    "seek during a call",
    "two tasks that read",
    "seek_to_beginning",
    "seek_to_end",
    "end_offsets",
    "offsets_for_times",
    "pause",
    "UndeserializableRecord",
    "setting changed",
    "setting of a broker changed",
    "describe_events",
    "events read",
    "describe_topics",
    "describe_cluster",
    "describe_configs",
    "describe_replica_state",
    "list_topics",
    "offsets",
    "topic made again",
    "send through a deletion",
    "records of a topic made again read",
    "TopicMadeAgain",
    "started under a name",
    "ProducerFenced",
    "list_producer_names",
    "delete_producer_name",
    "wrong request refused",
    "wrong batch refused",
    "program cancelled",
    "FetchAnswer",
)
"""What loads do and see; a swarm must have had each."""

TOPIC = "load"
"""Topic of the loads; the steady workload writes and reads it, too, and its records are under promise."""
SINGLE_TOPIC = "single"
"""A second topic, with one replica. Only where no disk is faulty: its one copy may not be."""

REMADE = TopicPartition("remade", 0)
"""A topic that is deleted and made again; what is acknowledged in its present life is under promise (`topic_maker`)."""

MESSAGE_BYTES = (None, None, "1024", "2048", "8192")
"""max.message.bytes; the smallest are smaller than the batches of most producers, which split them."""
BROKERS = (4, 5, 5, 7, 9)
MORE_BROKERS_SHARE = 0.2

PRODUCER_EXPIRY = "producer.id.expiration.ms"
"""Longer than any delivery_timeout_ms of the run, and not where clocks are wrong: else a retry may be written twice."""
SCRUB_RATE = "log.scrub.bytes.per.second"
BROKER_SETTINGS: tuple[tuple[float, dict[str, tuple[str, ...]]], ...] = (
    (0.4, {"log.tail.cache.bytes": ("2048", "16384")}),
    (0.3, {"log.index.size.max.bytes": ("64",), "log.index.interval.bytes": ("0", "64")}),
    (0.4, {"replica.fetch.max.bytes": ("1024", "8192"), "replica.fetch.response.max.bytes": ("8192", "2097152")}),
    (0.3, {"fetch.max.bytes": ("1024", "4096")}),
    (0.2, {PRODUCER_EXPIRY: ("9000",)}),
    (0.2, {"connections.max.idle.ms": ("200", "1000")}),
    (0.3, {"log.segment.delete.delay.ms": ("0", "500")}),
    (0.2, {"log.roll.ms": ("300", "1000")}),
    (0.2, {"log.flush.interval.ms": ("50", "500")}),
    (0.2, {"message.max.bytes": ("4096",)}),
    (
        0.2,
        {
            "socket.request.max.bytes": ("65536",),
            "message.max.bytes": ("16384",),
            "queued.max.request.bytes": ("25231360", "50331648"),
        },
    ),
    (0.1, {"zookeeper.connection.timeout.ms": ("12000",)}),
    (0.2, {"replica.fetch.min.bytes": ("1000",)}),
    (0.2, {SCRUB_RATE: ("0", "65536")}),
    (0.2, {"max.connections": ("60",)}),
    (0.2, {"num.partitions": ("3",)}),
    (0.1, {"controlled.shutdown.enable": ("false",)}),
    (0.2, {"controlled.shutdown.max.retries": ("1",)}),
    (0.2, {"leader.imbalance.per.broker.percentage": ("0",)}),
)
"""(share of the runs, settings of brokers with the values to choose from): limits that bite."""
TOPIC_SETTINGS: tuple[tuple[float, dict[str, tuple[str, ...]]], ...] = (
    (0.4, {"segment.bytes": ("1024", "4096")}),
    (0.2, {"segment.ms": ("200", "1000", "604800000")}),
    (0.2, {"index.interval.bytes": ("0", "128")}),
    (0.2, {"segment.index.bytes": ("64",)}),
    (0.2, {"flush.messages": ("1", "20")}),
    (0.1, {"flush.ms": ("100",)}),
    (0.2, {"file.delete.delay.ms": ("0",)}),
)
"""The same of the topic; they override those of the brokers."""
WHERE_NOTHING_IS_DELETED: tuple[tuple[float, dict[str, tuple[str, ...]]], ...] = (
    (0.3, {"delete.topic.enable": ("false",)}),
    (0.3, {"log.retention.ms": ("3000",)}),
)
"""Only in runs in which no topic is deleted and made again."""
OPEN_FILES = 256
"""The limit of descriptors in some runs: 32 of them are for segments, so a broker closes those that it used last."""
RARE_SHARE = 0.1
WIDE_PARTITIONS = 24
"""A fetch of more than 20 partitions is delayed in another way."""
RETENTION: tuple[tuple[float, dict[str, tuple[str, ...]]], ...] = (
    (0.7, {"retention.bytes": ("2048", "8192")}),
    (0.7, {"retention.ms": ("500", "2000")}),
)
RETENTION_SHARE = 0.3
CHECK_INTERVAL = {"log.retention.check.interval.ms": "300"}
CHANGES: dict[str, tuple[str | None, ...]] = {
    "max.message.bytes": ("1024", "4096", None),
    "min.insync.replicas": ("1", "2", "3"),
    "segment.bytes": ("1024", "8192", None),
    "segment.ms": ("300", None),
    "index.interval.bytes": ("0", "1024", None),
    "flush.messages": ("1", None),
    "flush.ms": ("50", None),
    "segment.index.bytes": ("64", None),
    "file.delete.delay.ms": ("0", "300", None),
}
"""What a run may change, and to which values (None: the brokers' default)."""
RETENTION_CHANGES: dict[str, tuple[str | None, ...]] = {
    "retention.bytes": ("4096", "-1", None),
    "retention.ms": ("1000", "-1", None),
}
BROKER_CHANGES: dict[str, tuple[str | None, ...]] = {
    "log.segment.bytes": ("2048", "16384", None),
    "log.roll.ms": ("300", None),
    "log.index.interval.bytes": ("0", "512", None),
    "log.index.size.max.bytes": ("64", None),
    "log.segment.delete.delay.ms": ("0", "500", None),
    "log.flush.interval.ms": ("50", None),
    "log.flush.interval.messages": ("1", "20", None),
    SCRUB_RATE: ("65536", "8388608", None),
    "witness.interval.ms": ("1000", "4000", None),
    "message.max.bytes": ("8192", None),
    "min.insync.replicas": ("1", "2", None),
    PRODUCER_EXPIRY: ("9000", "20000", None),
}
"""What a run may change of brokers while they run (None: what they were started with). Every topic under promise has a
min.insync.replicas of its own."""
BROKER_RETENTION_CHANGES: dict[str, tuple[str | None, ...]] = {
    "log.retention.bytes": ("4096", "-1", None),
    "log.retention.ms": ("1000", "-1", None),
}
"""They let records of every topic go, so only where no topic is made again."""


class LoadOptions(msgspec.Struct, kw_only=True):
    """One run's draw."""

    clients: tuple[str, ...]
    """Names of LOADS."""
    brokers: int
    """At least so many."""
    topics: dict[str, tuple[int, int, int]]
    """name: (partitions, replication factor, the lowest min.insync.replicas)"""
    topic_settings: dict[str, dict[str, str]]
    settings: dict[str, str]
    """They override the run's."""
    changes: dict[str, tuple[str | None, ...]]
    """Settings of TOPIC that change during the run, with their values."""
    broker_changes: dict[str, tuple[str | None, ...]] = {}
    """The same of brokers."""
    open_files_max: int | None = None
    """How many descriptors a broker may have."""


def draw_load_options(
    rng: random.Random, wanted: bool | None, brokers: int = 3, has_disk_faults: bool = False
) -> LoadOptions | None:
    """None: a run without loads. `wanted`: whether the run has any; None: the seed decides."""
    is_drawn = rng.random() < LOADS_SHARE
    return _draw(rng, brokers, has_disk_faults) if (is_drawn if wanted is None else wanted) else None


def _draw(rng: random.Random, brokers: int, has_disk_faults: bool) -> LoadOptions:
    clients = rng.sample(LOADS, rng.randint(LOADS_MIN, len(LOADS)))
    if rng.random() < MORE_BROKERS_SHARE:
        brokers = max(brokers, rng.choice(BROKERS))
    replicas = min(rng.choice((2, 3, 3, 3)), brokers)
    min_isr = rng.choice((1, 2, 2, 3))
    topics = {TOPIC: (rng.choice((1, 2, 4)), replicas, min(min_isr, replicas))}
    has_single, message_bytes = rng.random() < 0.2, rng.choice(MESSAGE_BYTES)
    if has_single and not has_disk_faults:
        topics[SINGLE_TOPIC] = (2, 1, 1)
    settings, own = _choose(rng, BROKER_SETTINGS), _choose(rng, TOPIC_SETTINGS)
    if has_disk_faults and settings.get(SCRUB_RATE) == "0":
        del settings[SCRUB_RATE]  # rot that is never read would stay
    changes = dict(rng.sample(sorted(CHANGES.items()), 3))
    if rng.random() < RETENTION_SHARE:
        own |= _choose(rng, RETENTION)
        changes |= RETENTION_CHANGES
        settings |= CHECK_INTERVAL
    if message_bytes is not None:
        own["max.message.bytes"] = message_bytes
    changes = changes if "settings_changer" in clients else {}
    if "min.insync.replicas" in changes:
        own["min.insync.replicas"], topics[TOPIC] = str(topics[TOPIC][2]), (*topics[TOPIC][:2], 1)
    broker_changes = dict(rng.sample(sorted(BROKER_CHANGES.items()), 6)) if changes else {}
    if not has_disk_faults and "topic_maker" not in clients:
        settings |= _choose(rng, WHERE_NOTHING_IS_DELETED)
        if changes and rng.random() < RETENTION_SHARE:
            broker_changes |= BROKER_RETENTION_CHANGES
        if broker_changes.keys() & BROKER_RETENTION_CHANGES.keys() or "log.retention.ms" in settings:
            settings |= CHECK_INTERVAL
    if rng.random() < RARE_SHARE:
        topics[TOPIC] = (WIDE_PARTITIONS, *topics[TOPIC][1:])
    return LoadOptions(
        clients=tuple(sorted(clients)),
        brokers=brokers,
        topics=topics,
        topic_settings={TOPIC: own, SINGLE_TOPIC: {}},
        settings=settings,
        changes=changes,
        broker_changes=broker_changes,
        open_files_max=OPEN_FILES if rng.random() < 2 * RARE_SHARE else None,
    )


def _choose(rng: random.Random, table: tuple[tuple[float, dict[str, tuple[str, ...]]], ...]) -> dict[str, str]:
    """One value of each setting of the rows that are drawn."""
    rows = [row for share, row in table if rng.random() < share]
    return {name: rng.choice(values) for row in rows for name, values in row.items()}
