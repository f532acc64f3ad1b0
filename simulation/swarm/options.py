"""What one run is made of, drawn from its seed: topics, settings, the kinds of fault and their intensities.

Owns: the draw. Leaves to others: to use it. Any change here, or in what the faults draw, changes the meaning of every
seed: those in simulation/seeds.txt then run other clusters.
"""

import random

import msgspec

from minibroker.simulation.swarm.faults.disk_options import DiskOptions
from minibroker.simulation.swarm.loads.load_options import PRODUCER_EXPIRY, TOPIC, LoadOptions

PROCESS_FAILURES = ("kill", "power", "power_many", "term", "kill_leader", "kill_controller", "blank_disk")
STALLS = ("pause", "slow_disk")
LINKS = (
    *("isolate", "cut_pair", "cut_one_way", "reset", "half_open", "slow_link", "narrow_link", "slow_broker"),
    *("client_cut", "reject_pair", "reject_broker", "reject_all"),
)
ZOOKEEPER = ("zk_cut", "zk_down", "zk_restart", "zk_slow", "zk_lost_reply", "zk_reset", "zk_expire")
DISKS = ("disk_full", "disk_fill", "disk_hang", "disk_error")
FAULTS = (*PROCESS_FAILURES, *STALLS, *LINKS, *ZOOKEEPER, *DISKS, "clock")
OLDER_ZOOKEEPER_SHARE = 0.1
"""How many runs put in an older copy of ZooKeeper's data if the caller does not choose; others stay as they were."""
DISK_THREADS = "disk threads"
DISK_THREADS_SHARE = 0.2
"""The same of disks whose background work overlaps with the event loop."""
ALL_HAVE_NOTED, ONE_WAS_DOWN = "older_zookeeper", "older_zookeeper_and_one_was_down"
OLDER_ZOOKEEPER = (ALL_HAVE_NOTED, ONE_WAS_DOWN)
"""While no broker runs: each has noted a change that the copy lacks, or all but one have."""
RARE_OLDER_ZOOKEEPER = (ONE_WAS_DOWN,)
ADDRESS_GONE = "address_gone"
"""Follows a broker's failure where brokers are containers. Not drawn: see RunOptions.containers."""
SEQUENCES = (
    "tail",
    "tails",
    "chase",
    "bounce_then_kill",
    "late_control",
    "lost_control",
    "late_replies",
    "isr_answer_lost",
    "zk_answer_lost",
    "paused_controller",
    "controller_and_leader",
    "quiet_elections",
    "slow_follower",
    "shrink_and_fall",
    "shutdown_under_load",
    "topic_again",
    "replies_lost_in_flight",
    "kill_in_turn",
    "power_twice",
    "rejoin_without_tail",
    "paused_leader",
    "held_orders",
    "lost_orders",
    "held_isr_answer",
    "lost_isr_answer",
    "held_fetch_answer",
    "held_epoch_answer",
    "held_produce_answers",
    "lost_produce_answers",
    "forked_tails",
    "there_and_back",
    "lagging_high_watermark",
    "suspected_leader",
    "suspected_controller",
    "controller_is_turned_away",
    "suspicion_while_zookeeper_is_slow",
    "controller_and_leader_die",
    "dead_and_back_at_once",
)
"""Sequences of faults that real bugs needed, and that single faults hit too seldom."""


class RunOptions(msgspec.Struct, kw_only=True):
    """One run's draw."""

    topics: dict[str, tuple[int, int, int]]
    """name: (partitions, replication factor, min.insync.replicas)"""
    settings: dict[str, str]
    faults: tuple[str, ...]
    sequences: tuple[str, ...]
    sequence_share: float
    """The share of steps that are sequences."""
    pause_mean: float
    """Seconds between two steps, on average."""
    fault_seconds_max: float
    """How long a fault may last, if it lasts at all."""
    value_bytes: int
    send_pause_max: float
    delivery_timeout_ms: int
    third_producer: str
    """`all`: idempotent; `any`: acks=all without idempotence; `one`: acks=1."""
    acks_none: bool
    churn: bool
    config_changes: bool
    seconds: float
    containers: bool
    """A moment after a broker is killed its name and address disappear, until it is started again."""
    disks: DiskOptions | None = None
    """One disk may be faulty, and all brokers may end at once."""
    loads: LoadOptions | None = None
    """What clients do besides the steady workload."""
    older_zookeeper: bool = False
    """After the other faults an older copy of ZooKeeper's data is put in for a while (`faults.older_zookeeper`)."""
    disk_threads: bool = False
    """Background work on the disks is done call by call, beside the event loop (`world.background_work`)."""

    def with_disks(self, disks: DiskOptions | None) -> "RunOptions":
        """The same draw with these disk options."""
        self.disks = disks
        if disks is not None:
            self.settings = {**self.settings, **disks.settings}
        return self

    def with_loads(self, loads: LoadOptions | None) -> "RunOptions":
        """The same draw with these loads."""
        self.loads = loads
        if loads is not None:
            self.topics = {**self.topics, **loads.topics}
            self.settings = {**self.settings, **loads.settings}
            if "clock" in self.faults:
                self.settings.pop(PRODUCER_EXPIRY, None)
                loads.broker_changes.pop(PRODUCER_EXPIRY, None)
        return self

    def topic_settings(self, topic: str) -> dict[str, str]:
        """What this topic overrides besides min.insync.replicas."""
        return {} if self.loads is None else self.loads.topic_settings.get(topic, {})

    def possible_settings(self, topic: str, name: str, of_brokers: str) -> set[str | None]:
        """All values that this setting of this topic may have during the run; None: the built-in default."""
        defaults = self.possible_settings_of_brokers(of_brokers)
        own: set[str | None] = {self.topic_settings(topic).get(name)}
        if self.loads is not None and topic == TOPIC:
            own.update(self.loads.changes.get(name, ()))
        return own - {None} | (defaults if None in own else set())

    def possible_settings_of_brokers(self, name: str) -> set[str | None]:
        """All values that this setting of any broker may have during the run; None: the built-in default."""
        default = self.settings.get(name)
        changes = () if self.loads is None else self.loads.broker_changes.get(name, ())
        return {default, *(default if value is None else value for value in changes)}

    def retention_bytes(self, topic: str) -> int | None:
        """The smallest size that retention may leave of a log; 0: it deletes by age; None: it deletes nothing."""
        if self.possible_settings(topic, "retention.ms", "log.retention.ms") - {None, "-1"}:
            return 0
        values = self.possible_settings(topic, "retention.bytes", "log.retention.bytes")
        return min((int(value) for value in values if value is not None and value != "-1"), default=None)

    def deletes(self, topic: str) -> bool:
        """Whether retention may delete records of this topic."""
        return self.retention_bytes(topic) is not None

    @property
    def flushes(self) -> bool:
        return "log.flush.interval.messages" in self.settings

    @property
    def session_seconds(self) -> float:
        return int(self.settings["zookeeper.session.timeout.ms"]) / 1000

    @property
    def lag_seconds(self) -> float:
        return int(self.settings["replica.lag.time.max.ms"]) / 1000


def draw_options(rng: random.Random, brokers: int = 3) -> RunOptions:
    """A subset of the faults with its own intensities finds more than all faults at once."""
    topics = {"a": (rng.choice((1, 2, 3, 4)), min(3, brokers), rng.choice((1, 2, 2)))}
    if rng.random() < 0.25:
        topics["b"] = (rng.choice((1, 2)), 2, rng.choice((1, 2)))
    settings = _draw_settings(rng)
    return RunOptions(
        topics=topics,
        settings=settings,
        faults=tuple(sorted(rng.sample(FAULTS, rng.randint(2, 7)))),
        sequences=tuple(sorted(rng.sample(SEQUENCES, rng.randint(2, 7)))),
        sequence_share=rng.choice((0.2, 0.4, 0.7)),
        pause_mean=rng.choice((0.2, 0.5, 1.0)),
        fault_seconds_max=rng.choice((1.0, 2.0, 4.0)),
        value_bytes=rng.choice((10, 100, 400)),
        send_pause_max=rng.choice((0.05, 0.1, 0.15)),
        delivery_timeout_ms=rng.choice((1_500, 4_000, 8_000)),
        third_producer=rng.choice(("all", "any", "one", "one")),
        acks_none=rng.random() < 0.15,
        churn=rng.random() < 0.15,
        config_changes=rng.random() < 0.15,
        seconds=rng.choice((5.0, 6.0, 7.0, 8.0, 9.0, 12.0)) if rng.random() < 0.97 else 30.0,
        containers=rng.random() < 0.25,
    )


def _draw_settings(rng: random.Random) -> dict[str, str]:
    """Time runs faster than in a real cluster, so that a short run sees sessions end and followers lag."""
    settings = {
        "zookeeper.session.timeout.ms": rng.choice(("1000", "1500", "3000")),
        "replica.lag.time.max.ms": rng.choice(("600", "1000", "2000", "4000")),
        "replica.fetch.wait.max.ms": rng.choice(("100", "300", "500")),
        "replica.fetch.backoff.ms": rng.choice(("100", "500")),
        "replica.socket.timeout.ms": rng.choice(("1000", "3000")),
        "replica.high.watermark.checkpoint.interval.ms": rng.choice(("500", "5000")),
        "request.timeout.ms": rng.choice(("1000", "3000")),
        "auto.leader.rebalance.enable": rng.choice(("true", "false")),
        "leader.imbalance.check.interval.seconds": "2",
        "log.flush.offset.checkpoint.interval.ms": rng.choice(("1000", "60000")),
        "controlled.shutdown.retry.backoff.ms": "300",
        "witness.interval.ms": "2000",
        "broker.failure.detection": rng.choice(("connection", "connection", "connection", "session")),
    }
    if rng.random() < 0.35:
        settings["log.flush.interval.messages"] = "1"
    if rng.random() < 0.4:
        settings |= {"log.segment.bytes": "4096", "log.index.interval.bytes": "256"}
        if rng.random() < 0.6:
            settings |= {
                "log.retention.bytes": rng.choice(("4096", "16384")),
                "log.retention.check.interval.ms": rng.choice(("300", "1000")),
            }
    return settings
