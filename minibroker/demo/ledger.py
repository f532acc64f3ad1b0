"""The offset of each acknowledged record: what the log is compared with.

Owns: the number of the input line at each acknowledged offset, four bytes per record, and how many records of each
partition carry which leader epoch. Leaves to others: the lines themselves.
"""

from array import array
from collections import Counter

from minibroker.protocol.ids import TopicPartition

NOTHING = -1


class Ledger:
    """Collects acknowledgements."""

    def __init__(self) -> None:
        self.lines: dict[TopicPartition, array[int]] = {}
        """By partition: the number of the input line at each offset, NOTHING where none was acknowledged."""
        self.epochs: dict[TopicPartition, Counter[int]] = {}
        self.conflicts: list[str] = []
        """Offsets that two records were acknowledged at."""

    def acknowledged(self, partition: TopicPartition, offset: int, leader_epoch: int, line: int) -> None:
        """As RecordSender reports it."""
        lines = self.lines.get(partition)
        if lines is None:
            lines = self.lines[partition] = array("i")
            self.epochs[partition] = Counter()
        if offset >= len(lines):
            lines.extend([NOTHING] * (offset - len(lines)))
            lines.append(line)
        elif lines[offset] == NOTHING:
            lines[offset] = line
        else:
            self.conflicts.append(f"{partition} offset {offset} was acknowledged for two records")
        self.epochs[partition][leader_epoch] += 1

    @property
    def count(self) -> int:
        return sum(epochs.total() for epochs in self.epochs.values())

    def share_of_epoch_above(self, partition: TopicPartition, epoch: int) -> float:
        """The share of the partition's records with a later epoch than this."""
        epochs = self.epochs.get(partition, Counter())
        later = sum(count for number, count in epochs.items() if number > epoch)
        return later / epochs.total() if epochs else 0.0
