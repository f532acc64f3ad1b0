"""What an operator does about a log directory that is not in use, and about lost ZooKeeper: the same in every command.

Owns: the choice of the cure by the reason that the broker gives. Leaves to others: examining the directory.
"""

ZOOKEEPER_CURE = (
    "start ZooKeeper, or repair the network to it; if `cluster up` started it: `minibroker cluster start zookeeper`, or"
    " `minibroker cluster resume zookeeper` if it is paused"
)

MAKE_ROOM = "make room: lower retention.bytes, delete a topic, or enlarge the disk"
PUT_BACK = "put that directory back (is its disk mounted?), and restart the broker"
MAKE_WRITABLE = "mount it for writing, and restart the broker"
MAKE_USABLE = "move that entry away, or give the broker's user access to it, and restart the broker"
START_AGAIN = "restart the broker; if its disk fails again, replace it, and start the broker with an empty directory"

_BY_WORDS = (
    (" is gone: ", PUT_BACK),
    ("no such file or directory", PUT_BACK),  # a missing file of a partition takes only its replica offline
    ("read-only file system", MAKE_WRITABLE),
    ("permission denied", MAKE_USABLE),
    ("operation not permitted", MAKE_USABLE),
    ("is a directory", MAKE_USABLE),
    ("cannot use ", MAKE_USABLE),
)
"""Words of the operating system and of the broker's disk port."""


def of_log_directory(state: str, reason: str | None) -> str:
    """For a directory that is 'full' or 'offline'."""
    if state == "full":
        return MAKE_ROOM
    words = (reason or "").lower()
    return next((cure for found, cure in _BY_WORDS if found in words), START_AGAIN)
