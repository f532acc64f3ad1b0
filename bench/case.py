"""What a case is, and what one round of it yields.

Owns: the types that runner, report and cases share. A case is one load on one cluster, with figures as its result. It
runs on every peer it names, in turn, and the figures of rounds with the same number are compared with each other.
Leaves to others: which cases exist (cases/catalogue) and which figures are good enough (goals).
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from minibroker.bench.peers.peer import Peer

MINIBROKER, KAFKA = "minibroker", "kafka"
"""Names of the peers. A comparison with something other than a cluster (the bare data path, a plain walk over files) is
another figure of the same round."""


async def nothing() -> None:
    """Settles a machine on which nothing is measured."""


class Round(msgspec.Struct, frozen=True):
    """What a case needs to know of the round it runs."""

    number: int
    """Counts from 0; the same number on every peer is one alternation."""
    volume: float
    """1.0 is the full load; `--quick` runs a fraction of it."""
    directory: Path
    """An empty folder for the case's own files; it is removed after the round."""
    kept: dict[str, str]
    """Values that cases keep for later rounds on the same cluster, by a key of their own: for example the name of a
    topic that is filled once and read many times."""
    progress: Callable[[str], None]
    """Reports progress to the user at the terminal."""
    attempt: int = 0
    """A failed round is repeated."""
    settle: Callable[[], Awaitable[None]] = nothing
    """Brings the machine into the state in which every round begins; for a case with several loads a round."""

    @property
    def label(self) -> str:
        """For names of topics: no two attempts on one cluster share it."""
        return f"{self.number}-{self.attempt}"

    def volume_of(self, count: int, at_least: int = 1) -> int:
        """The part of `count`, the full load, that this round runs."""
        return max(at_least, round(count * self.volume))


class ProcessCost(msgspec.Struct, frozen=True):
    """CPU and memory of one process during the loaded part of a round."""

    role: str
    """'broker-1', 'zookeeper', 'producer', 'consumer', ..."""
    cpu_s: float
    peak_rss_mb: float


class Measurement(msgspec.Struct, frozen=True):
    """Result of one round. Figures have their unit in their name: mb_s, records_s, p99_ms, cpu_s_per_gb."""

    figures: dict[str, float]
    costs: list[ProcessCost] = []
    notes: list[str] = []
    """What a reader must know to interpret the figures, in sentences: 'the page cache could not be dropped'."""
    details: list[str] = []
    """What the figures are made of, one line each, for a closer look: for example every single failover."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One load with its name. `run` raises CaseFailed if the round is worthless: its figures are not reported."""

    name: str
    """As in `--cases`: produce-1kb-128kib."""
    title: str
    figure: str
    """The figure in the tables; the JSON document has the others."""
    unit: str
    higher_is_better: bool
    run: Callable[[Peer, Round], Awaitable[Measurement]]
    peers: tuple[str, ...] = (MINIBROKER, KAFKA)
    own_cluster: bool = False
    """The case starts, disturbs and stops a cluster of its own: it gets one that is not running yet, and that is
    stopped and wiped afterwards. Otherwise it shares one warm cluster with other cases."""
    rounds: int | None = None
    """Number of rounds, if not that of the run (20 for a failover, 1 for a case of ten minutes)."""
    about_s: float
    """Duration of a round on one peer of a small quiet machine, topics and generators included; for `bench list`."""
    figures_of: dict[str, str] = {}
    """The figure's name on peers where it differs: {'kafka': 'aiokafka_mb_s'}."""

    def about_minutes(self, peers: int, alternations: int) -> float:
        """Duration of all its rounds, on at most this many peers."""
        rounds = self.rounds if self.rounds is not None else alternations
        return rounds * min(peers, len(self.peers)) * self.about_s / 60

    def figure_of(self, peer: str) -> str:
        return self.figures_of.get(peer, self.figure)


class CaseFailed(Exception):
    """The round is worthless: records were lost, a client failed. The message is one sentence."""
