"""The result of one run: its findings, what it saw, and whether it counts.

Owns: the form of the result. Leaves to others: to run anything.
"""

from collections import Counter

from minibroker.simulation.checks.finding import CheckerFinding
from minibroker.simulation.swarm.coverage import RunCoverage
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.narrator import Narrator
from minibroker.simulation.swarm.options import RunOptions
from minibroker.simulation.swarm.reached import Reached
from minibroker.simulation.swarm.workload import ACKNOWLEDGED_MIN, PRODUCERS_MIN

READERS_MIN = 2
ELECTIONS_MIN = 2
TRUNCATIONS_MIN = 1
"""A run with less than this shows nothing, see also `workload`."""


class RunOutcome:
    """Of one seed."""

    def __init__(self, seed: int, options: RunOptions, history: History) -> None:
        self.seed = seed
        self.options = options
        self.history = history
        self.events: list[str] = []
        self.findings: list[CheckerFinding] = []
        self.is_beyond = False
        """A run that breaks the promise on purpose; it does not have to count."""
        self.losses: list[CheckerFinding] = []
        """Beyond the promise: acknowledged records that are gone, each named by the clients' history."""
        self.elections = 0
        self.isr_changes = 0
        self.trace_hash = ""
        self.coverage = RunCoverage()
        self.reached = Reached()
        self.acknowledged: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        self.seconds_to_repair: list[float] = []
        """From each damage of a disk to its broker's return to every ISR."""
        self.seconds_to_full_isr: list[float] = []
        """The same, of disks that were lost completely."""
        self.readers = 0
        self.virtual_seconds = 0.0
        self.deliveries = 0
        """Arrivals of bytes on the virtual network."""
        self.callbacks = 0
        self.narrator: Narrator | None = None

    @property
    def lines(self) -> Counter[str]:
        return self.coverage.lines

    @property
    def truncations(self) -> int:
        return self.coverage.truncations

    @property
    def missing(self) -> list[str]:
        """What a run needs to count, and this one lacks."""
        have = (
            ("acknowledged records", self.acknowledged.total(), ACKNOWLEDGED_MIN),
            ("producers with acknowledgements", len(self.acknowledged), PRODUCERS_MIN),
            ("consumers that read", self.readers, READERS_MIN),
            ("elections", self.elections, ELECTIONS_MIN),
            ("truncations", self.truncations, TRUNCATIONS_MIN),
        )
        lacking = [f"{what}: {number} of {least}" for what, number, least in have if number < least]
        return [] if self.is_beyond else lacking

    @property
    def counts(self) -> bool:
        return not self.missing

    @property
    def summary(self) -> str:
        history = self.history
        return (
            f"acked {self.acknowledged.total()} unknown {history.unknown} failed {len(history.surely_failed)} "
            f"read {len(history.read)} elections {self.elections} isr changes {self.isr_changes} "
            f"truncations {self.truncations}"
            f"{'' if self.counts else ' does not count: ' + ', '.join(self.missing)}"
        )
