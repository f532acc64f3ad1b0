"""The doors a client gets when it is given none.

A client knows doors by their interfaces only. The real ones are handed in by whoever composes a program: `minibroker`
registers them when it is imported, so `Producer()` without `runtime=` reaches this machine's network and clock.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minibroker.runtime.ports import Runtime

open_default: "Callable[[], Runtime] | None" = None
"""Set by the package's front door."""


def _unknown() -> int:
    return 0


process_id: Callable[[], int] = _unknown
"""Which process this is: another one after a fork. Set by the package's front door."""


def runtime_or_default(given: "Runtime | None") -> "Runtime":
    """The given doors, or fresh default ones."""
    if given is not None:
        return given
    assert open_default is not None, "import minibroker registers the default doors"
    return open_default()
