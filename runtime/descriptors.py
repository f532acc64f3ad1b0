"""File descriptors of this process: how many it may have, and how they are shared out.

Owns: raising the limit, and who may take how much of it: log files, links between brokers, clients. Refuses to open
anything. A process without descriptors can neither roll a segment nor reach ZooKeeper, so clients get what the others
leave: they are the only ones who come in any number.
"""

import errno
import resource
from typing import Final

import msgspec

NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})

OWN_DESCRIPTORS = 64
"""Standard streams, event loop, ZooKeeper, listeners, lock, background work: about twenty, and as many to spare."""
LINKS_PER_BROKER = 8
"""Between two brokers, both ways: fetcher, controller, its lifeline, requests to the controller; twice, as when one
starts again before the kernel has closed the old ones."""
BROKERS_EXPECTED = 16
"""A cluster is rarely larger; a larger one has to have a larger limit."""
LOG_FILES_MAX = 400
"""Segment files held open at most: an idle one costs a descriptor, a closed one a system call when it is used."""
LOG_FILES_MIN = 32
"""With fewer, files would be opened and closed with each request of a few dozen busy partitions."""
CLIENTS_MIN = 32
"""With fewer places for clients a broker is of no use."""
LIMIT_MIN = OWN_DESCRIPTORS + LINKS_PER_BROKER * BROKERS_EXPECTED + LOG_FILES_MIN + CLIENTS_MIN
UNLIMITED = 1 << 30
"""Stands for a limit that there is not."""


class Shares(msgspec.Struct, frozen=True):
    """Who may take how many of the descriptors."""

    limit: int
    log_files: int
    connections: int
    """Of clients and brokers together."""
    reserve: int
    """Of `limit`, what no accepted connection may take: logs, links that this broker opens, its own."""
    shortage: str | None
    """What is wrong, with the cure; None if the limit is enough."""


def current_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> int:
    """Take all that the system grants; returns how many that is. The soft limit is usually 1,024 for the sake of old
    programs that use select(); this one does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # some systems promise more than they give
            pass
    return current_limit()


def share_out(limit: int, max_connections: int, partitions: int = 0) -> Shares:
    """What a broker with these settings may use. `partitions` are those in its log directory: a busy one wants its
    newest segment open."""
    own = OWN_DESCRIPTORS + LINKS_PER_BROKER * BROKERS_EXPECTED
    log_files = max(LOG_FILES_MIN, min(LOG_FILES_MAX, (limit - own) // 3))
    reserve = own + log_files
    connections = max(1, min(max_connections, limit - reserve))
    shortage = None
    if limit < LIMIT_MIN:
        shortage = f"at most {limit} open files, {LIMIT_MIN} are the least: raise the limit (ulimit -n, LimitNOFILE=)"
    elif connections < max_connections:
        shortage = (
            f"at most {limit} open files: {connections} connections instead of max.connections={max_connections}, for"
            f" {reserve} are kept for logs and links; raise the limit (ulimit -n, LimitNOFILE=) to"
            f" {reserve + max_connections}, or lower max.connections"
        )
    elif min(partitions, LOG_FILES_MAX) > log_files:
        shortage = (
            f"at most {limit} open files: of {partitions} partitions only {log_files} have a file open at a time;"
            f" raise the limit (ulimit -n, LimitNOFILE=) to {own + 3 * min(partitions, LOG_FILES_MAX)}"
        )
    return Shares(limit, log_files, connections, reserve, shortage)
