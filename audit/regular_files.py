"""Opening and reading the files of a log directory, whatever lies in their place. Uses the operating system only.

Owns: that a pipe, which has no end before somebody writes, or a device, which has none at all, is an error like any
other, and that no file takes more memory than a caller allows.
"""

import errno
import os
import stat

_KINDS = {
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}


def open_regular(path: str) -> int:
    """A descriptor to read with. Raises OSError."""
    try:
        _refuse_others(os.stat(path).st_mode, path)  # not opened: that alone has effects on some devices
    except FileNotFoundError:
        if os.path.islink(path):
            raise OSError(errno.EINVAL, "it is a link to nothing", path) from None
        raise
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _refuse_others(os.fstat(descriptor).st_mode, path)  # it may have been exchanged
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_others(mode: int, path: str) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, no regular file", path)


def read_regular(path: str, limit: int) -> bytes:
    """All of a small file. Raises OSError, also where there is more than the limit."""
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and at most {limit} belong there", path)
        return file.read(size)
