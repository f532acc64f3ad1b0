"""How many files the system lets this process open.

Owns: raising the limit, and which errors mean that it is reached. Leaves to others: dividing it (`descriptor_shares`).
"""

import contextlib
import errno
import resource
from typing import Final

from minibroker.runtime.descriptor_shares import UNLIMITED

NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


def raised_limit() -> int:
    """Raise the limit as far as the system allows and return it. The soft limit is usually 1,024 for old programs that
    use select(); this one does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems report more than they grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _bounded(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def hard_limit() -> int:
    """The limit of a broker that is started here."""
    return _bounded(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def _bounded(limit: int) -> int:
    return UNLIMITED if limit == resource.RLIM_INFINITY else min(limit, UNLIMITED)
