"""Reads segment files from the first batch to the last and checks each CRC: the minimum that any reader of them must
do.

python -m minibroker.bench.load.plain_walk walk '{"files": ["..."]}'

Owns: the baseline for audit and recovery. It does not interpret errors: a batch with a wrong CRC is counted, an invalid
size ends the file.
"""

import mmap
import os
import struct
import time
from typing import Any

from minibroker.bench.load.generator import LoadStopwatch, arguments, report
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.record_batch import CRC_COVERS_FROM, HEADER_BYTES, LENGTH_PREFIX_BYTES

LENGTH = struct.Struct(">i")
LENGTH_AT = 8
CRC = struct.Struct(">I")
CRC_AT = 17


def walk(files: list[str]) -> dict[str, Any]:
    """Figures of one process over its files."""
    watch = LoadStopwatch()
    began = time.monotonic()
    total_bytes = batches = wrong = 0
    for path in files:
        if os.path.getsize(path) == 0:
            continue
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            mapped.madvise(mmap.MADV_SEQUENTIAL)
            with memoryview(mapped) as view:
                walked, right = walk_batches(view)
            total_bytes += len(mapped)
            batches += walked
            wrong += walked - right
    return watch.read() | {"bytes": total_bytes, "batches": batches, "wrong": wrong, "began": began}


def walk_batches(view: memoryview) -> tuple[int, int]:
    """Whole batches, and how many of them have the CRC they claim."""
    position = batches = right = 0
    end = len(view)
    while end - position >= HEADER_BYTES:
        size = LENGTH.unpack_from(view, position + LENGTH_AT)[0] + LENGTH_PREFIX_BYTES
        if size < HEADER_BYTES or position + size > end:
            break
        claimed = CRC.unpack_from(view, position + CRC_AT)[0]
        right += crc32c(view[position + CRC_COVERS_FROM : position + size]) == claimed
        batches += 1
        position += size
    return batches, right


if __name__ == "__main__":
    _, parameters = arguments()
    report(walk(parameters["files"]))
