"""A batch that is whole by its CRC, and whose records nobody can decode."""

import struct

from minibroker.protocol.checksum import crc32c
from minibroker.protocol.record_batch import HEADER_BYTES

NO_MSGPACK_TYPE = 0xC1


def undecodable(batch: bytes | bytearray) -> bytearray:
    """The same batch, but where its first record should begin nothing does."""
    broken = bytearray(batch)
    broken[HEADER_BYTES + {0xDC: 3, 0xDD: 5}.get(broken[HEADER_BYTES], 1)] = NO_MSGPACK_TYPE
    struct.pack_into(">I", broken, 17, crc32c(bytes(broken[21:])))
    return broken
