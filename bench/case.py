"""What a case is, and what one round of it yields.

Owns: the words that runner, report and cases share. A case is one load on one cluster with figures as a result; it is
played on every peer it names, in turn, and the figures of rounds with the same number are compared with each other.
Refuses to know which cases exist (cases/catalogue) and what is good enough (goals).
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from minibroker.bench.peers.peer import Peer

MINIBROKER, KAFKA = "minibroker", "kafka"
"""Names of the peers. What a case compares with and is no cluster (the bare data path, a plain walk over files) is one
more figure of the same round."""


async def nothing() -> None:
    """To settle a machine on which nothing is measured."""


class Round(msgspec.Struct, frozen=True):
    """What a case is told of the round it plays."""

    number: int
    """Counts from 0; the same number on every peer is one alternation."""
    volume: float
    """1.0 is the full load; `--quick` plays a fraction of it."""
    directory: Path
    """An empty folder for the case's own files; it is removed after the round."""
    kept: dict[str, str]
    """What cases keep for later rounds on the same cluster, by a key of their own: the name of a topic that is filled
    once and read many times."""
    tell: Callable[[str], None]
    """Progress, for a person at the terminal."""
    attempt: int = 0
    """A round that failed is played again."""
    settle: Callable[[], Awaitable[None]] = nothing
    """Bring the machine into the state in which every round begins; for a case with several loads a round."""

    @property
    def label(self) -> str:
        """For names of topics: no two attempts on one cluster share it."""
        return f"{self.number}-{self.attempt}"

    def volume_of(self, count: int, at_least: int = 1) -> int:
        """`count` of the full load, as much of it as this round plays."""
        return max(at_least, round(count * self.volume))


class ProcessCost(msgspec.Struct, frozen=True):
    """What one process spent during the loaded part of a round."""

    role: str
    """'broker-1', 'zookeeper', 'producer', 'consumer', ..."""
    cpu_s: float
    peak_rss_mb: float


class Measurement(msgspec.Struct, frozen=True):
    """What one round found. Figures carry their unit in their name: mb_s, records_s, p99_ms, cpu_s_per_gb."""

    figures: dict[str, float]
    costs: list[ProcessCost] = []
    notes: list[str] = []
    """What a reader must know to judge the figures, in sentences: 'the page cache could not be dropped'."""
    details: list[str] = []
    """What the figures are made of, a line each, for who wants to look closer: every single failover."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One load with its name. `run` raises CaseFailed if the round is worthless: then nothing is reported of it."""

    name: str
    """As in `--cases`: produce-1kb-128kib."""
    title: str
    figure: str
    """The figure in the tables; others are in the JSON document."""
    unit: str
    higher_is_better: bool
    run: Callable[[Peer, Round], Awaitable[Measurement]]
    peers: tuple[str, ...] = (MINIBROKER, KAFKA)
    own_cluster: bool = False
    """The case starts, breaks and stops a cluster of its own: it is given one that does not run yet, and that is
    stopped and wiped afterwards. Otherwise it shares one warm cluster with other cases."""
    rounds: int | None = None
    """How many it wants, if not as many as the run has (20 for a failover, 1 for what takes ten minutes)."""
    about_s: float
    """What a round on one peer takes on a small quiet machine, topics and generators included; for `bench list`."""
    figures_of: dict[str, str] = {}
    """By peer, where its figure has another name: {'kafka': 'aiokafka_mb_s'}."""

    def about_minutes(self, peers: int, alternations: int) -> float:
        """Of all its rounds, on so many peers at the most."""
        rounds = self.rounds if self.rounds is not None else alternations
        return rounds * min(peers, len(self.peers)) * self.about_s / 60

    def figure_of(self, peer: str) -> str:
        return self.figures_of.get(peer, self.figure)


class CaseFailed(Exception):
    """The round says nothing: records were lost, a client failed. One sentence that says what happened."""
