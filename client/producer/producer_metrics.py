"""What `Producer.metrics()` returns. The parts of the producer count, once per batch or attempt."""

import msgspec

from minibroker.client.producer.batches import Batch


class ProducerMetrics(msgspec.Struct, kw_only=True):
    """Counted since `start()`, unless a field says otherwise."""

    records_acknowledged: int = 0
    """With acks=0: sent."""
    records_failed: int = 0
    batches_acknowledged: int = 0
    attempts_refused: int = 0
    """Batches that a broker refused, so that they were sent again or failed."""
    attempts_lost: int = 0
    """Batches whose answer did not come."""
    requests_in_flight: int = 0
    """Now."""
    buffered_bytes: int = 0
    """Of buffer_memory, now."""

    def count(self, batch: Batch) -> None:
        """The batch got its outcome."""
        if batch.error is not None:
            self.records_failed += batch.record_count
        else:
            self.records_acknowledged += batch.record_count
            self.batches_acknowledged += 1
