"""What holds for every record, also without acks=all: none is invented, none is lost while its leader lasts. Pure.

Owns: the checks of records that only one broker promised (acks=1) or none did (acks=0), event by event.
"""

from minibroker.chaos.history.client_history import HistoryEvent, Polled
from minibroker.chaos.history.history_index import HistoryIndex
from minibroker.chaos.history.promise import Found, Promise


class InventedRecords:
    """Each record that was read had been sent to that partition before."""

    def __init__(self, index: HistoryIndex, promise: Promise, found: Found) -> None:
        self._index = index
        self._found = found
        self._is_asked = promise.knows_all_sends
        self._sent = {key: bytearray(len(placed.names)) for key, placed in index.partitions.items()}

    def take(self, event: HistoryEvent) -> None:
        if not self._is_asked:
            return
        if event.type == "invoke":
            for sent in event.sent:
                self._sent[sent.key][self._index.partitions[sent.key].number_of[sent.value]] = 1
        for record in event.polled:
            placed = self._index.partitions[record.key]
            if placed.has_foreign_sends or self._sent[record.key][placed.number_of[record.value]]:
                continue
            fact = f"{event.process} read {record.value!r:.60} at offset {record.offset}"
            text = "a record was read that was not sent there"
            self._found.add("invented-record", record.key, text, fact, f"it was {self._where(record.value)}")

    def _where(self, value: str) -> str:
        for key, placed in self._index.sorted_partitions():
            number = placed.number_of.get(value)
            if number is not None and self._sent[key][number]:
                return f"sent to {key}"
        return "sent by no client so far"


class LostInItsEpoch:
    """A record acknowledged with acks=1 is lost only if another leader came: then a later epoch stands in the log, and
    another record of its own epoch never stands at its offset."""

    def __init__(self, index: HistoryIndex, promise: Promise, found: Found) -> None:
        self._index = index
        self._promise = promise
        self._found = found
        self._weak: dict[str, list[tuple[int, int, str, str]]] = {}
        """Partition: offset, epoch, process, value of each record that one replica acknowledged and no reader saw."""
        self._held: dict[str, dict[int, Polled]] = {}
        """Partition: the records last read at those offsets."""
        self._last: dict[str, Polled] = {}
        """Partition: the record last read at the highest offset."""

    def take(self, event: HistoryEvent) -> None:
        if event.f == "send" and event.type == "info" and event.leader_epoch is not None:
            for sent in event.sent:
                placed = self._index.partitions[sent.key]
                if sent.offset is not None and not placed.is_read[placed.number_of[sent.value]]:
                    weak = (sent.offset, event.leader_epoch, event.process, sent.value)
                    self._weak.setdefault(sent.key, []).append(weak)
        for record in event.polled if event.f == "poll" and event.type != "invoke" else ():
            last = self._last.get(record.key)
            if last is None or record.offset >= last.offset:
                self._last[record.key] = record
            if record.offset in self._index.partitions[record.key].weak_offsets:
                self._held.setdefault(record.key, {})[record.offset] = record

    def finish(self) -> None:
        """Judge, when the whole history was seen."""
        for key, weak in sorted(self._weak.items()):
            last = self._last.get(key)
            if last is None:
                continue
            log = self._held.get(key, {})
            log_start = self._promise.log_starts.get(key, 0)
            gone_below = max(last.offset, log_start)
            # If retention deleted the last records before they were read, a later leader may have written them.
            knows_end = self._promise.is_final and log_start <= last.offset + 1
            for offset, epoch, process, value in weak:
                if offset not in log and (not knows_end or offset < gone_below):
                    continue  # no reader was there, or retention has deleted it
                held = log.get(offset, last)
                if held.leader_epoch == epoch or (last.leader_epoch is not None and last.leader_epoch <= epoch):
                    what = "that offset holds" if offset in log else "the log ends with"
                    facts = (
                        f"{process} got offset {offset} in epoch {epoch} for {value!r:.60}",
                        f"{what} {held.value!r:.60} of epoch {held.leader_epoch}; the last epoch is"
                        f" {last.leader_epoch}",
                    )
                    text = "a record with acks=1 is lost without a new leader"
                    self._found.add("lost-in-its-epoch", key, text, *facts)
