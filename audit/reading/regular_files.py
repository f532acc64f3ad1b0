"""Opens and reads the files of a log directory, whatever is in their place. Uses only the operating system.

Owns: that a pipe (no end until another process writes) or a device (no end at all) is an ordinary error, and that no
file takes more memory than a caller allows.
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
    """A descriptor for reading. Raises OSError."""
    try:
        _refuse_others(os.stat(path).st_mode, path)  # not opened: on some devices opening alone has effects
    except FileNotFoundError:
        if os.path.islink(path):
            raise OSError(errno.EINVAL, "it is a link to nothing", path) from None
        raise
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _refuse_others(os.fstat(descriptor).st_mode, path)  # it may have been replaced
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_others(mode: int, path: str) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(
            errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file", path
        )


def read_regular(path: str, limit: int) -> bytes:
    """The whole of a small file. Raises OSError, also where it is larger than the limit."""
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size} bytes, at most {limit} are allowed", path)
        return file.read(size)
