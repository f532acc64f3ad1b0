"""How a process divides its file descriptors among log files, connections between brokers, and clients. Pure.

Owns: how much of the limit each use may take, and the message when the limit is too small. Leaves to others: opening
files and asking the system. A process without descriptors can neither roll a segment nor reach ZooKeeper, so clients
get what remains: they alone come in any number.
"""

import msgspec

from minibroker.runtime.server.server_limits import BROKER_PLACES

OWN_DESCRIPTORS = 64
"""Standard streams, event loop, ZooKeeper, listeners, lock, background work: about thirty, and as many in reserve."""
BROKER_CONNECTIONS = 64
"""Connections that this broker opens: to each other broker one fetcher, and as controller three; sixteen brokers."""
LOG_FILES_MAX = 400
"""At most this many segment files stay open: an idle one costs a descriptor, a closed one a system call at its use."""
LOG_FILES_MIN = 32
"""With fewer, each request of a few dozen busy partitions would open and close files."""
CLIENTS_MIN = 32
"""With fewer places for clients a broker is of no use."""
FIXED = OWN_DESCRIPTORS + BROKER_CONNECTIONS + BROKER_PLACES
LIMIT_MIN = FIXED + LOG_FILES_MIN + CLIENTS_MIN
UNLIMITED = 1 << 30
"""Stands for no limit."""
CURE = "raise the limit of open files (ulimit -n, LimitNOFILE= of systemd, --ulimit nofile= of Docker)"


class DescriptorShares(msgspec.Struct, frozen=True):
    """How many descriptors each use may take."""

    limit: int
    log_files: int
    connections: int
    """Accepted connections, except those in places kept for brokers."""
    shortage: str | None
    """What is wrong, with the cure; None if the limit is enough."""


def share_out(limit: int, max_connections: int, partitions: int = 0) -> DescriptorShares:
    """What a broker with these settings may use. `partitions` are those in its log directory: each busy one needs its
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
    return DescriptorShares(limit, log_files, connections, shortage)
