"""What one run is made of, drawn from its seed: topics, settings, the kinds of fault and their intensities.

Owns: the draw. Refuses to do anything with it.
"""

import random

import msgspec

KILLS = ("kill", "power", "power_many", "term", "kill_leader", "kill_controller", "blank_disk")
STALLS = ("pause", "slow_disk")
CUTS = ("isolate", "cut_pair", "cut_one_way", "reset", "slow_link", "client_cut")
ZOOKEEPER = ("zk_cut", "zk_down", "zk_restart", "zk_slow", "zk_lost_reply", "zk_reset", "zk_expire")
DISKS = ("disk_full", "disk_error")
KINDS = (*KILLS, *STALLS, *CUTS, *ZOOKEEPER, *DISKS, "clock")


class Options(msgspec.Struct, kw_only=True):
    """One run's draw."""

    topics: dict[str, tuple[int, int, int]]
    """name: (partitions, replication factor, min.insync.replicas)"""
    settings: dict[str, str]
    faults: tuple[str, ...]
    pause_mean: float
    value_bytes: int
    send_pause_max: float
    acks_one: bool
    acks_none: bool
    churn: bool
    config_changes: bool
    seconds: float = 30.0

    @property
    def flushes(self) -> bool:
        return "log.flush.interval.messages" in self.settings


def draw_options(rng: random.Random) -> Options:
    """A subset of the faults with intensities of its own finds more than all of them at once."""
    topics = {"a": (rng.choice((1, 2, 3, 6)), 3, rng.choice((1, 2, 2)))}
    if rng.random() < 0.4:
        topics["b"] = (rng.choice((1, 3)), 2, rng.choice((1, 2)))
    settings = {
        "replica.lag.time.max.ms": rng.choice(("1500", "3000", "5000")),
        "replica.fetch.wait.max.ms": rng.choice(("100", "500")),
        "auto.leader.rebalance.enable": rng.choice(("true", "false")),
        "leader.imbalance.check.interval.seconds": "5",
        "log.flush.offset.checkpoint.interval.ms": rng.choice(("2000", "60000")),
        "controlled.shutdown.retry.backoff.ms": "500",
    }
    if rng.random() < 0.35:
        settings["log.flush.interval.messages"] = "1"
    if rng.random() < 0.4:
        settings |= {"log.segment.bytes": "4096", "log.index.interval.bytes": "256"}
        if rng.random() < 0.6:
            settings |= {"log.retention.bytes": "16384", "log.retention.check.interval.ms": "1000"}
    faults = rng.sample(KINDS, rng.randint(2, 9))
    return Options(
        topics=topics,
        settings=settings,
        faults=tuple(sorted(faults)),
        pause_mean=rng.choice((0.7, 1.5, 3.0)),
        value_bytes=rng.choice((10, 100, 400)),
        send_pause_max=rng.choice((0.05, 0.1, 0.3)),
        acks_one=rng.random() < 0.4,
        acks_none=rng.random() < 0.2,
        churn=rng.random() < 0.25,
        config_changes=rng.random() < 0.2,
    )
