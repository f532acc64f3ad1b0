"""The C allocator of this process: freed memory goes back to the system.

Owns: two settings of glibc, and a periodic trim. With other C libraries it does nothing. Without the settings, the
first large buffer that is freed makes glibc keep as much for good: after one burst of large requests a broker would
hold tens of MiB more for ever. With them glibc still keeps the free pages between buffers in use: 36 MB after a load
over a thousand partitions, which the trim gives back.
"""

import asyncio
import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BYTES = 1024 * 1024
"""A buffer of this size gets pages of its own, which are freed with it. Usual batches are smaller and stay cheap."""
KEPT_FREE_BYTES = 4 * 1024 * 1024
"""Free memory at the end of the heap that is kept for the next allocations."""
TRIM_INTERVAL_SECONDS = 60.0
"""How often free pages inside the heap are given back: it takes a millisecond or two, and pages that are needed again
cost as much as new ones."""


def return_freed_memory() -> None:
    """Call once, early. A C library that does not know the settings ignores them."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(ctypes.c_int(M_MMAP_THRESHOLD), ctypes.c_int(LARGE_BYTES))
    mallopt(ctypes.c_int(M_TRIM_THRESHOLD), ctypes.c_int(KEPT_FREE_BYTES))


async def trim_regularly() -> None:
    """Give back free pages between buffers in use, until cancelled."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    while True:
        await asyncio.sleep(TRIM_INTERVAL_SECONDS)
        trim(ctypes.c_size_t(KEPT_FREE_BYTES))
