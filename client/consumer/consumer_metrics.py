"""What `Consumer.metrics()` returns. The parts of the consumer count, once per batch or answer."""

import msgspec

from minibroker.protocol.ids import TopicPartition


class ConsumerMetrics(msgspec.Struct, kw_only=True):
    """Counted since `start()`, unless a field says otherwise."""

    records_read: int = 0
    """Decoded for the program. After a `seek` or `pause` some are read again."""
    bytes_read: int = 0
    """Of encoded batches."""
    fetches_answered: int = 0
    fetches_failed: int = 0
    """Unanswered, refused, or without the requested records; for each partition of the fetch."""
    lag: dict[TopicPartition, int | None] = {}
    """Records between the position and the high watermark of the last fetch; None before the first."""
