"""What the clients of a run know: sent, acknowledged, surely failed, unknown, read.

Owns: the record. Refuses to judge it.
"""

from collections.abc import Callable

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.finding import Finding

ERRORS_MAX = 50


class History:
    """What clients know."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        """`now` tells the virtual seconds since the start."""
        self._now = now
        self.acked: dict[tuple[TopicPartition, int], bytes] = {}
        self.acked_somewhere: dict[bytes, TopicPartition] = {}
        """Acknowledged as duplicates so old that the broker no longer knew their offsets."""
        self.weakly_acked = 0
        self.surely_failed: set[bytes] = set()
        self.unknown = 0
        self.read: dict[tuple[TopicPartition, int], bytes] = {}
        self.findings: list[Finding] = []
        self.errors: dict[str, int] = {}

    def note_error(self, who: str, error: Exception) -> None:
        key = f"{who}: {type(error).__name__}"
        if key in self.errors or len(self.errors) < ERRORS_MAX:
            self.errors[key] = self.errors.get(key, 0) + 1

    def find(self, invariant: str, text: str, partition: TopicPartition | None = None, *facts: str) -> None:
        self.findings.append(
            Finding(invariant=invariant, text=text, at_seconds=self._now(), partition=partition, facts=facts)
        )
