"""What a log gives to who reads it."""

import msgspec

from minibroker.runtime.ports import Buffer


class LogSlice(msgspec.Struct, frozen=True):
    """Whole batches as they lie in the log, to be sent as they are."""

    parts: list[Buffer]
    size_bytes: int
    base_offset: int
    """Of the first batch; it may lie below the offset that was asked for."""
    next_offset: int
    """Where the next read continues; the asked offset when there is nothing."""
    last_epoch: int | None
    """Leader epoch of the last batch; None when there is nothing."""
