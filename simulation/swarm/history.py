"""What the clients of a run know: sent, acknowledged, surely failed, unknown, read.

Owns: the record. Refuses to judge it.
"""

from minibroker.protocol.ids import TopicPartition

ERRORS_MAX = 50


class History:
    """What clients know."""

    def __init__(self) -> None:
        self.acked: dict[tuple[TopicPartition, int], bytes] = {}
        self.acked_somewhere: dict[bytes, TopicPartition] = {}
        """Acknowledged as duplicates so old that the broker no longer knew their offsets."""
        self.weakly_acked = 0
        self.surely_failed: set[bytes] = set()
        self.unknown = 0
        self.read: dict[tuple[TopicPartition, int], bytes] = {}
        self.findings: list[str] = []
        self.errors: dict[str, int] = {}

    def note_error(self, who: str, error: Exception) -> None:
        key = f"{who}: {type(error).__name__}"
        if key in self.errors or len(self.errors) < ERRORS_MAX:
            self.errors[key] = self.errors.get(key, 0) + 1
