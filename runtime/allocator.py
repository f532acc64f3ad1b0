"""The C allocator of this process: memory that was freed goes back to the system.

Owns: two settings of glibc. Elsewhere nothing is done. Without them glibc learns from the first large buffer that is
freed to keep as much for good: after one burst of large requests a broker would hold tens of MiB more for ever.
"""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BYTES = 1024 * 1024
"""A buffer of this size gets pages of its own, which go with it. Usual batches are smaller and stay cheap."""
KEPT_FREE_BYTES = 4 * 1024 * 1024
"""Free memory at the end of the heap that is kept for the next allocations."""


def return_freed_memory() -> None:
    """Call once, early. A C library that does not know the settings ignores them."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(ctypes.c_int(M_MMAP_THRESHOLD), ctypes.c_int(LARGE_BYTES))
    mallopt(ctypes.c_int(M_TRIM_THRESHOLD), ctypes.c_int(KEPT_FREE_BYTES))
