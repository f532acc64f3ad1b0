"""A batch that does not decode: damaged on its way, so it is fetched again, or written so, and it may be skipped."""

import pytest

from minibroker.client.consumer.records import read_batch
from minibroker.protocol.record_batch import HEADER_BYTES, CorruptBatch, UndecodableBatch, build_batch, read_header
from tests.protocol.test_record_batch import resealed

NOT_MSGPACK = 0xC1


@pytest.mark.parametrize("check_crcs", [True, False])
def test_a_batch_damaged_on_its_way_is_told_from_one_that_was_written_so(check_crcs: bool) -> None:
    """A consumer that skips what was written so would lose records, with or without `check_crcs`."""
    batch = bytearray(build_batch([(b"k", b"v", 1_000, ())]))
    batch[HEADER_BYTES + 1] = NOT_MSGPACK  # the first record; the header tells of the array of records
    with pytest.raises(CorruptBatch) as damaged:
        read_batch(memoryview(batch), 0, read_header(batch), check_crcs)
    assert not isinstance(damaged.value, UndecodableBatch)
    resealed(batch)
    with pytest.raises(UndecodableBatch):
        read_batch(memoryview(batch), 0, read_header(batch), check_crcs)
