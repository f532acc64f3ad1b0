"""How far behind the readers of a history were: a metric, and no anomaly. Pure."""

from minibroker.chaos.history.client_history import HistoryEvent


class RealTimeLag:
    """The longest time from the moment at which a record was known to be there (acknowledged, or read) to the end of
    the poll in which readers first passed it."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self.worst_key: str | None = None
        self._known: dict[str, dict[int, int]] = {}
        """Partition: offsets that no reader has passed yet, with the time at which each was first known."""
        self._passed: dict[str, int] = {}
        """Partition: the offset behind the last record that was read."""

    def take(self, event: HistoryEvent) -> None:
        if event.type != "ok":
            return
        for sent in event.sent:
            if sent.offset is not None and sent.offset >= self._passed.get(sent.key, 0):
                self._known.setdefault(sent.key, {}).setdefault(sent.offset, event.time_ns)
        for record in event.polled:
            since_ns = self._known.get(record.key, {}).pop(record.offset, None)
            if since_ns is not None and (event.time_ns - since_ns) / 1e9 > self.worst_s:
                self.worst_s, self.worst_key = (event.time_ns - since_ns) / 1e9, record.key
            self._passed[record.key] = max(self._passed.get(record.key, 0), record.offset + 1)
