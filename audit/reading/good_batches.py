"""The common case of reading a segment: consecutive batches that pass every check.

Owns: a loop that costs little more than the CRC. It takes a batch only if every check of `check_batch` certainly
passes. It stops at the first batch of which it cannot be sure (corrupt, cut by the window's end, or only unusual), and
the caller checks that one completely. So it may reject a valid batch, but never accept an invalid one (tests compare
both), and every report comes from `check_batch`.
"""

import struct

from minibroker.audit.reading.replica import Columns
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.record_batch import (
    ATTRIBUTES_KNOWN,
    CRC_COVERS_FROM,
    HEADER_BYTES,
    HEADER_FORMAT,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    OFFSET_MAX,
    RECORD_BYTES_MIN,
)

_FIELDS = struct.Struct(HEADER_FORMAT + "BH")
"""The header, the payload's first byte and the next two: an array's length in two of its three forms."""
_ATTRIBUTES_UNKNOWN = ~ATTRIBUTES_KNOWN
_OFFSET_CERTAIN = OFFSET_MAX - 2**31
"""Up to this offset no record count exceeds the range of offsets."""
_PAYLOAD_LENGTH_LESS = HEADER_BYTES - LENGTH_PREFIX_BYTES
"""How much more than the payload batch_length counts."""
_SHORT_ARRAY, _SHORT_ARRAY_LENGTHS = 0x90, 16
_ARRAY_16 = 0xDC


def take_good_batches(window: bytes, base: int, position: int, end: int, columns: Columns) -> int:
    """Append to `columns` the valid batches from `position` on that begin before `end` and are complete in `window`,
    which begins at `base` (positions and `end` are the file's). Returns the position behind the last one taken."""
    unpack = _FIELDS.unpack_from
    view = memoryview(window)
    have = len(window)
    at = position - base
    last = min(have - _FIELDS.size, end - base - 1)
    taken: list[int] = []
    while at <= last:
        offset, length, epoch, magic, crc, attributes, delta, _, latest, producer, term, sequence, count, kind, more = (
            unpack(window, at)
        )
        behind = at + length + LENGTH_PREFIX_BYTES
        if (
            magic != MAGIC
            or behind > have
            or count < 1
            or delta != count - 1
            or count * RECORD_BYTES_MIN > length - _PAYLOAD_LENGTH_LESS
            or not 0 <= offset <= _OFFSET_CERTAIN
            or epoch < -1
            or producer < -1
            or term < -1
            or sequence < -1
            or attributes & _ATTRIBUTES_UNKNOWN
            or (kind != _SHORT_ARRAY + count if count < _SHORT_ARRAY_LENGTHS else kind != _ARRAY_16 or more != count)
            or crc32c(view[at + CRC_COVERS_FROM : behind]) != crc
        ):
            break
        taken += (base + at, offset, offset + count, epoch, crc, behind - at, latest, producer, term, sequence)
        at = behind
    columns.positions.extend(taken[0::10])
    columns.base_offsets.extend(taken[1::10])
    columns.ends.extend(taken[2::10])
    columns.epochs.extend(taken[3::10])
    columns.crcs.extend(taken[4::10])
    columns.sizes.extend(taken[5::10])
    columns.max_timestamps.extend(taken[6::10])
    columns.producer_ids.extend(taken[7::10])
    columns.producer_epochs.extend(taken[8::10])
    columns.base_sequences.extend(taken[9::10])
    return base + at
