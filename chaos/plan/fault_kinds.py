"""The kinds of faults: what each does, to which brokers, and what it needs. Pure.

Owns: the catalogue, which `minibroker chaos faults` prints. Leaves to others: when one comes (`drawing`), and how it is
done (`chaos/run/fault_actions.py`, with the verbs of the harness).
"""

from typing import Literal, TypeAlias

from msgspec import Struct

Backend: TypeAlias = Literal["simulated", "processes", "compose"]
BACKENDS: tuple[Backend, ...] = ("simulated", "processes", "compose")
Target: TypeAlias = Literal["leader", "follower", "controller", "all", "majority", "cluster"]
"""The role at the moment of the fault. `leader` and `follower`: of one partition, drawn by the seed."""
ONE: tuple[Target, ...] = ("leader", "follower", "controller")


class FaultKind(Struct, frozen=True, kw_only=True):
    """One kind."""

    name: str
    text: str
    """What happens, as a part of a sentence."""
    targets: tuple[Target, ...] = ONE
    backends: tuple[Backend, ...] = BACKENDS
    needs: str = ""
    """On real machines, beside the back end."""
    is_sequence: bool = False
    """Several faults in an order that real bugs needed: every run draws these, and often."""
    is_alone: bool = False
    """It may take the only copy of what was acknowledged if other copies are missing: it comes only when every replica
    is in sync and no other fault lasts, and the next one waits until that is so again."""


NO_CONTAINERS: tuple[Backend, ...] = ("simulated", "processes")

KINDS: tuple[FaultKind, ...] = (
    FaultKind(
        name="kill",
        text="SIGKILL; started again at the end",
        targets=("leader", "follower", "controller", "majority", "all"),
    ),
    FaultKind(name="stop", text="a clean stop (SIGTERM); started again at the end"),
    FaultKind(name="pause", text="SIGSTOP, as a long pause of the machine; SIGCONT at the end"),
    FaultKind(name="rolling-restart", text="every broker is stopped cleanly and started, one by one", targets=("all",)),
    FaultKind(
        name="chase-leader",
        text="kill the leader, and each leader that is elected after it, then start all",
        targets=("leader",),
        is_sequence=True,
    ),
    FaultKind(
        name="follower-then-leader",
        text="what the leader sends is slow; a follower is killed, and the leader as soon as the other follows again",
        targets=("leader",),
        backends=NO_CONTAINERS,
        is_sequence=True,
    ),
    FaultKind(
        name="power-loss",
        text="turn one machine off: what was not synced is lost; started again at the end",
        is_alone=True,
    ),
    FaultKind(name="partition", text="cut off from all brokers, ZooKeeper and clients", targets=(*ONE, "majority")),
    FaultKind(name="cut-from-brokers", text="cut off from the other brokers; ZooKeeper and clients reach it"),
    FaultKind(name="cut-from-zookeeper", text="cut off from ZooKeeper only"),
    FaultKind(name="one-way", text="what it sends to the other brokers does not arrive; what they send does"),
    FaultKind(
        name="slow",
        text="what passes between it and the other brokers takes up to half a second longer",
        backends=NO_CONTAINERS,
    ),
    FaultKind(
        name="loss",
        text="a fifth of the packets between it and the other brokers is lost, either way",
        backends=("compose",),
        needs="root",
    ),
    FaultKind(name="reset", text="its connections are reset, every half second"),
    FaultKind(name="expire-session", text="its ZooKeeper session expires"),
    FaultKind(name="zookeeper-kill", text="ZooKeeper is killed; started again at the end", targets=("cluster",)),
    FaultKind(name="zookeeper-pause", text="ZooKeeper hangs (SIGSTOP)", targets=("cluster",)),
    FaultKind(
        name="zookeeper-slow",
        text="what passes between brokers and ZooKeeper takes up to half a second longer",
        targets=("cluster",),
        backends=("processes",),
    ),
    FaultKind(
        name="disk-full",
        text="its disk has no room left; it has again at the end",
        needs="root on processes, to mount a small file system; root and strace on containers",
        is_alone=True,
    ),
    FaultKind(
        name="write-error",
        text="every write to its logs fails with EIO; it is killed and started again at the end",
        needs="root and strace on processes and containers",
        is_alone=True,
    ),
    FaultKind(
        name="sync-error",
        text="every fsync fails with EIO; it is killed and started again at the end",
        needs="root and strace on processes and containers",
        is_alone=True,
    ),
    FaultKind(
        name="torn-tail",
        text="killed, and the last segment of one log is cut inside its last batch",
        is_alone=True,
    ),
    FaultKind(
        name="bit-flip",
        text="killed, and one bit of a batch below the high watermark changes",
        is_alone=True,
    ),
    FaultKind(
        name="bit-flip-at-end",
        text="killed, and one bit of the last batch changes",
        is_alone=True,
    ),
    FaultKind(name="index-lost", text="killed, and every index file is gone", is_alone=True),
    FaultKind(name="disk-lost", text="killed, and started again at the end on a blank disk", is_alone=True),
    FaultKind(
        name="clock-jump",
        text="its wall clock jumps by an hour, forth or back; it is right again at the end",
        targets=(*ONE, "all"),
        backends=NO_CONTAINERS,
    ),
)
BY_NAME = {kind.name: kind for kind in KINDS}
