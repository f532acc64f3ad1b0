"""The runtime of a client that is given none.

A client knows ports by their interfaces only. The program supplies the real ones: `minibroker` registers them when it
is imported, so `Producer()` without `runtime=` uses this machine's network and clock.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minibroker.runtime.ports import Runtime

open_default: "Callable[[], Runtime] | None" = None
"""Set by the package `minibroker`."""


process_id = 0
"""The id of this process, which differs after a fork. Set by the package `minibroker`: a system call for each question
would cost more than the rest of the check."""


def runtime_or_default(given: "Runtime | None") -> "Runtime":
    """The given runtime, or a new default one."""
    if given is not None:
        return given
    assert open_default is not None, "import minibroker registers the default runtime"
    return open_default()
