"""The table of model bounds: each a start and a budget of faults, small enough for an exhaustive search.

Owns: the table. A search with every fault at once would have more states than a machine can visit; most bugs need few
faults of few kinds together. So each entry grants some kinds, and says which known bugs it can show.
"""

from msgspec import Struct

KINDS = (
    "records",
    "moves",
    "kills",
    "losses",
    "stops",
    "disks",
    "expiries",
    "takeovers",
    "fences",
    "successions",
    "lags",
    "late",
    "lost",
    "twice",
)
"""What a path may use up:

records: appended by leaders. moves: elections of the preferred leader. kills: a process ends, its bytes stay. losses: a
power loss that takes unsynced bytes. stops: all brokers end at once, by a kill or without power. disks: while its
broker is down, a disk is replaced by a blank one, or a power cut shows that it lied: it has any part of what it had
synced. Another in-sync replica has everything. expiries: a session ends, the process lives on and registers again.
takeovers: another controller becomes active while the old one's messages are still in flight. fences: a broker's
failure is confirmed, rightly or wrongly: the controller unregisters it, and it learns of it later. successions: the
same for the controller's own broker: another becomes active and unregisters it in one write. lags: the lag limit passes
for a leader. late: a request or an answer is held up, and may arrive at any later time. lost: it never arrives. twice:
it arrives, and again later.
"""


class ModelBounds(Struct, frozen=True, kw_only=True):
    """A start, and what may go wrong."""

    name: str
    title: str
    brokers: int = 3
    leader: int = 1
    in_sync: tuple[int, ...] = ()
    """At the start; empty: all."""
    min_insync: int = 1
    epochs: int = 3
    """Leader epochs; a path ends before the next election."""
    budget: dict[str, int]
    prelude: tuple[tuple[str | int, ...], ...] = ()
    """Steps before the search begins; they use up the budget, too."""
    depth: int = 60
    """Maximal number of steps; searches end before."""
    is_small: bool = False
    """Cheap enough for every run of the tests."""


ALL_BOUNDS = (
    ModelBounds(
        name="copying",
        title="two replicas; messages are late, lost or repeated; a follower falls behind and returns",
        brokers=2,
        budget={"records": 2, "late": 1, "lost": 1, "twice": 1, "lags": 1},
        is_small=True,
    ),
    ModelBounds(
        name="elections",
        title="the preferred leader takes over, a process is killed and returns",
        leader=2,
        budget={"records": 2, "moves": 1, "kills": 1},
    ),
    ModelBounds(
        name="returning",
        title="the preferred leader is killed, returns and leads again",
        budget={"records": 2, "moves": 1, "kills": 1},
    ),
    ModelBounds(
        name="joining",
        title="a slow replica loses its tail and fetches from a leader with a lagging high watermark",
        leader=2,
        in_sync=(1, 2),
        prelude=(("produce", 2), ("fetch", 1), ("fetch", 1, "reply-lost"), ("rebalance",), ("send", 1)),
        budget={"records": 1, "moves": 1, "losses": 1, "lost": 2},
    ),
    ModelBounds(
        name="proposals",
        title="two replicas; AlterPartition is late, lost and repeated while sessions end",
        brokers=2,
        budget={"records": 2, "lags": 1, "late": 1, "expiries": 1},
    ),
    ModelBounds(
        name="power",
        title="two replicas; power fails and takes what was not synced",
        brokers=2,
        budget={"records": 2, "losses": 1, "lags": 1, "late": 1},
    ),
    ModelBounds(
        name="resending",
        title="a joiner loses its tail and registers again while the proposal about it is lost and sent again",
        brokers=2,
        in_sync=(1,),
        budget={"records": 2, "losses": 1, "lost": 2},
        is_small=True,
    ),
    ModelBounds(
        name="expanding",
        title="a joiner is in the ISR, and its leader does not know: the answer was lost; then the joiner takes over",
        leader=2,
        in_sync=(2, 3),
        prelude=(("fetch", 1), ("alter", 0, "reply-lost")),
        budget={"records": 2, "moves": 1, "lags": 1, "lost": 1},
    ),
    ModelBounds(
        name="stopping",
        title="all are killed or lose power, and start in any order",
        budget={"records": 2, "stops": 1},
    ),
    ModelBounds(
        name="disks",
        title="all are killed or lose power, one disk is replaced or has lied, and they start in any order",
        budget={"records": 1, "stops": 1, "disks": 1},
    ),
    ModelBounds(
        name="answers",
        title="the leader changes while a fetch, an answer or an order is held up",
        leader=2,
        budget={"records": 2, "moves": 1, "late": 1},
    ),
    ModelBounds(
        name="minimum",
        title="two replicas, min.insync.replicas=2: the set falls below it, then the last one loses power",
        brokers=2,
        min_insync=2,
        budget={"records": 2, "losses": 1, "lags": 1, "late": 1},
    ),
    ModelBounds(
        name="controllers",
        title="another controller becomes active; the old one's messages are in flight, and it goes on deciding",
        leader=2,
        budget={"records": 1, "takeovers": 1, "moves": 1, "kills": 1},
    ),
    ModelBounds(
        name="fencing",
        title="a live broker is taken for failed; it leads, copies and asks on until it learns of it",
        leader=2,
        budget={"records": 2, "fences": 1},
    ),
    ModelBounds(
        name="succession",
        title="a live controller is taken for failed; its broker leads, copies and asks on until it learns of it",
        leader=2,
        budget={"records": 1, "successions": 1},
    ),
)


def find_bounds(name: str) -> ModelBounds:
    """Raises KeyError."""
    return {each.name: each for each in ALL_BOUNDS}[name]
