"""Batches with a correct CRC and records that cannot be decoded."""

import struct

import msgspec

from minibroker.protocol.checksum import crc32c
from minibroker.protocol.record_batch import HEADER_BYTES, HEADER_FORMAT

NO_MSGPACK_TYPE = 0xC1


def undecodable(batch: bytes | bytearray) -> bytearray:
    """The same batch with an invalid byte where its first record should begin."""
    broken = bytearray(batch)
    broken[HEADER_BYTES + {0xDC: 3, 0xDD: 5}.get(broken[HEADER_BYTES], 1)] = NO_MSGPACK_TYPE
    return _sealed(broken)


def beyond_all_times(records: int = 1) -> bytearray:
    """Records with timestamps that do not fit into 64 bits, because base timestamp and delta are both the maximum."""
    last_ms = 2**63 - 1
    payload = msgspec.msgpack.encode([(number, last_ms, None, b"late", ()) for number in range(records)])
    size = HEADER_BYTES + len(payload)
    header = (0, size - 12, -1, 77, 0, 0, records - 1, last_ms, last_ms, -1, -1, -1, records)
    return _sealed(bytearray(struct.pack(HEADER_FORMAT, *header) + payload))


def _sealed(batch: bytearray) -> bytearray:
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch
