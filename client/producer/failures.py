"""Failures that the program has not looked at, which flush() and close() report. Pure."""

from minibroker.client.errors import UndeliveredRecords
from minibroker.client.limits import FAILURES_REMEMBERED
from minibroker.client.producer.batches import Batch


class Failures:
    """Failed batches until they are reported, or their deliveries are awaited."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._forgotten_records = 0

    def add(self, batch: Batch) -> None:
        if len(self._batches) >= FAILURES_REMEMBERED:
            self._batches = [failed for failed in self._batches if not failed.observed]
        if len(self._batches) < FAILURES_REMEMBERED:
            self._batches.append(batch)
        else:
            self._forgotten_records += batch.record_count

    def report(self) -> None:
        """Raise UndeliveredRecords if there are any; each is reported once."""
        unseen = [batch for batch in self._batches if not batch.observed]
        record_count = sum(batch.record_count for batch in unseen) + self._forgotten_records
        self._batches = []
        self._forgotten_records = 0
        if unseen and unseen[0].error is not None:
            raise UndeliveredRecords(record_count, unseen[0].error)
