"""How many files this process may have open, asked of the system.

Owns: raising the limit, and which errors tell that it is reached. Refuses to share it out (`descriptor_shares.py`).
"""

import contextlib
import errno
import resource
from typing import Final

from minibroker.runtime.descriptor_shares import UNLIMITED

NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


def raised_limit() -> int:
    """Take all that the system grants; returns how many that is. The soft limit is usually 1,024 for the sake of old
    programs that use select(); this one does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems promise more than they give
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _known(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def hard_limit() -> int:
    """What a broker that is started here would have."""
    return _known(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def _known(limit: int) -> int:
    return UNLIMITED if limit == resource.RLIM_INFINITY else min(limit, UNLIMITED)
