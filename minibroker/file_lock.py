"""The lock of an open file, which the operating system takes back when the file is closed."""

import fcntl


def try_lock(descriptor: int) -> bool:
    """Lock this file against other processes; False while one of them holds it. Where the file system has no locks
    there is nothing to wait for: True."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
