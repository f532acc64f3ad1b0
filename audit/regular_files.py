"""Opening and reading the files of a log directory, whatever lies in their place. Uses the operating system only.

Owns: that a pipe, which has no end before somebody writes, or a device, which has none at all, is an error like any
other, and that no file takes more memory than a caller allows.
"""

import errno
import os
import stat


def open_regular(path: str) -> int:
    """A descriptor to read with. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return descriptor


def read_regular(path: str, limit: int) -> bytes:
    """All of a small file. Raises OSError, also where there is more than the limit."""
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and at most {limit} belong there", path)
        return file.read(size)
