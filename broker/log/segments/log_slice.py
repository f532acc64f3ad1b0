"""The result of reading from a log."""

import msgspec

from minibroker.runtime.ports import Buffer


class LogSlice(msgspec.Struct, frozen=True):
    """Whole batches as they are stored, to be sent unchanged."""

    parts: list[Buffer]
    size_bytes: int
    base_offset: int
    """Of the first batch; it may lie below the requested offset."""
    next_offset: int
    """Where the next read continues; the requested offset if there is no batch."""
    last_epoch: int | None
    """Leader epoch of the last batch; None if there is no batch."""
