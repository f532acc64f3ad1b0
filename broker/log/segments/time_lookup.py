"""The first record at or after a time (ListOffsets by timestamp).

Owns: the search for a segment by its largest timestamp, then for batches by the time index, then in one batch's
records. Only here does a broker decode records, one batch at a time. A batch that does not decode under a sound CRC is
what its producer sent: every replica has the same bytes, so it is no damage, and the answer comes from its header.
"""

from collections.abc import Iterable

from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.log.segments.segment import Segment
from minibroker.protocol.record_batch import BatchHeader, CorruptBatch, UndecodableBatch, decode_records


def first_record_from(
    segments: Iterable[tuple[Segment, int]], timestamp_ms: int, start_offset: int, end_offset: int
) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record at or after that time, from `start_offset` on and below `end_offset`.
    `segments`: each with its end."""
    for segment, segment_end in segments:
        if segment_end <= start_offset or segment.largest_timestamp() < timestamp_ms:
            continue
        for position, header in segment.headers_from_timestamp(timestamp_ms):
            if header.base_offset >= end_offset:
                return None
            found = _in_batch(segment, position, header, timestamp_ms, start_offset)
            if found is not None:
                return found if found[1] < end_offset else None
    return None


def _in_batch(
    segment: Segment, position: int, header: BatchHeader, timestamp_ms: int, start_offset: int
) -> tuple[int, int] | None:
    try:
        records = decode_records(segment.read_batch(position, header))
    except UndecodableBatch:
        return header.max_timestamp, max(header.base_offset, start_offset)
    except CorruptBatch as error:
        raise CorruptLog(segment.log_path, position, error.reason) from None
    for record in records:
        if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
            return record.timestamp_ms, record.offset
    if header.base_offset >= start_offset:  # its producer lied, and might have in each batch: decode no second one
        return header.max_timestamp, header.base_offset
    return None
