"""The C allocator of this process: memory that was freed goes back to the system.

Owns: two settings of glibc, and asking it now and then. Elsewhere nothing is done. Without the settings glibc learns
from the first large buffer that is freed to keep as much for good: after one burst of large requests a broker would
hold tens of MiB more for ever. With them it still keeps the pages between buffers that live: 36 MB after a load over a
thousand partitions.
"""

import asyncio
import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BYTES = 1024 * 1024
"""A buffer of this size gets pages of its own, which go with it. Usual batches are smaller and stay cheap."""
KEPT_FREE_BYTES = 4 * 1024 * 1024
"""Free memory at the end of the heap that is kept for the next allocations."""
TRIM_INTERVAL_SECONDS = 60.0
"""How often free pages inside the heap are given back: it takes a millisecond or two, and what is needed again costs as
much as new pages do."""


def return_freed_memory() -> None:
    """Call once, early. A C library that does not know the settings ignores them."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(ctypes.c_int(M_MMAP_THRESHOLD), ctypes.c_int(LARGE_BYTES))
    mallopt(ctypes.c_int(M_TRIM_THRESHOLD), ctypes.c_int(KEPT_FREE_BYTES))


async def trim_regularly() -> None:
    """Give back what is free between buffers that live, until cancelled."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    while True:
        await asyncio.sleep(TRIM_INTERVAL_SECONDS)
        trim(ctypes.c_size_t(KEPT_FREE_BYTES))
