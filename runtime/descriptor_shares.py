"""How a process shares out its file descriptors: log files, links between brokers, clients. Pure.

Owns: who may take how much of the limit, and what to say when it is too small. Refuses to open anything and to ask the
system. A process without descriptors can neither roll a segment nor reach ZooKeeper, so clients get what the others
leave: they are the only ones who come in any number.
"""

import msgspec

from minibroker.runtime.server_limits import BROKER_PLACES

OWN_DESCRIPTORS = 64
"""Standard streams, event loop, ZooKeeper, listeners, lock, background work: about thirty, and as many to spare."""
LINKS = 64
"""That this broker opens: to each other one a fetcher, and as controller three; sixteen brokers."""
LOG_FILES_MAX = 400
"""Segment files held open at most: an idle one costs a descriptor, a closed one a system call when it is used."""
LOG_FILES_MIN = 32
"""With fewer, files would be opened and closed with each request of a few dozen busy partitions."""
CLIENTS_MIN = 32
"""With fewer places for clients a broker is of no use."""
FIXED = OWN_DESCRIPTORS + LINKS + BROKER_PLACES
LIMIT_MIN = FIXED + LOG_FILES_MIN + CLIENTS_MIN
UNLIMITED = 1 << 30
"""Stands for a limit that there is not."""
CURE = "raise the limit of open files (ulimit -n, LimitNOFILE= of systemd, --ulimit nofile= of Docker)"


class Shares(msgspec.Struct, frozen=True):
    """Who may take how many of the descriptors."""

    limit: int
    log_files: int
    connections: int
    """That are accepted, but for those in the places of brokers."""
    shortage: str | None
    """What is wrong, with the cure; None if the limit is enough."""


def share_out(limit: int, max_connections: int, partitions: int = 0) -> Shares:
    """What a broker with these settings may use. `partitions` are those in its log directory: a busy one wants its
    newest segment open."""
    log_files = max(LOG_FILES_MIN, min(LOG_FILES_MAX, (limit - FIXED) // 3))
    connections = max(1, min(max_connections, limit - FIXED - log_files))
    shortage = None
    if limit < LIMIT_MIN:
        shortage = f"{limit} open files are too few, {LIMIT_MIN} are the least: {CURE}"
    elif connections < max_connections:
        wanted = FIXED + LOG_FILES_MAX + max_connections
        shortage = (
            f"{limit} open files allow {connections} connections, not max.connections={max_connections}, for the others"
            f" are kept for logs and brokers: {CURE} to {wanted}, or lower max.connections"
        )
    elif min(partitions, LOG_FILES_MAX) > log_files:
        shortage = (
            f"{limit} open files allow {log_files} segment files, and there are {partitions} partitions: {CURE} to"
            f" {FIXED + 3 * min(partitions, LOG_FILES_MAX)}"
        )
    return Shares(limit, log_files, connections, shortage)
