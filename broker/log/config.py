"""The settings of one log (Kafka's topic settings) and the named limits of this folder, each with its reason."""

import msgspec

DISK_READ_BYTES_MAX = 1024 * 1024
"""A read from disk blocks the event loop; a reader that asks for more gets the rest with its next fetch."""
SCAN_BYTES = 512 * 1024
"""Recovery reads a segment in pieces of this size, into one buffer: few system calls, and the bytes are still in the
processor's cache when their CRC is computed."""
INDEX_BYTES_MAX = 16 * 1024 * 1024
"""Index entries of all segments of one log directory kept in memory; the least recently used are dropped first."""
TAIL_CACHE_BYTES = 24 * 1024 * 1024
"""Recently appended batches of all logs of a broker: readers that keep up cost no system call, and the broker stays
below 80 MB."""
FREE_BYTES_TO_HEAL = 8 * 1024 * 1024
"""A full disk counts as healed with room for several of the largest batches, not with the first free block."""
SEGMENT_POSITION_MAX = 2**32 - 1
"""Index entries hold positions and relative offsets in 32 bits; no segment grows beyond that."""


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one partition's log; None means no limit. A broker fills each from its topic (`log_config` in
    `broker/configuration/topic_config.py`); the defaults are for a log that stands alone."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int | None = 604_800_000
    retention_bytes: int | None = None
    max_message_bytes: int = 1_048_588
    file_delete_delay_ms: int = 60_000
    producer_id_expiration_ms: int = 86_400_000
