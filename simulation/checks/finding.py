"""What a checker reports: which rule was broken, when, where, and the facts that contradict each other.

Owns: the form of a finding, and the module in which a crash began. Leaves to others: all checks.
"""

import traceback
from pathlib import PurePath

from msgspec import Struct

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.world.loop import Unhandled

PACKAGE = PurePath(__file__).parents[2]
"""The folder from which the packages are imported: a folder of links or, without one, the project itself."""
TEXT_MAX = 600


class CheckerFinding(Struct, frozen=True, kw_only=True):
    """One violation of a rule."""

    invariant: str
    """`I21`; the name of an anomaly in the history (`lost-write`); `audit:<rule>`; `crash` for a process that ended."""
    text: str
    at_seconds: float | None = None
    """Virtual seconds since the start of the run; None if it was found in the final state."""
    partition: TopicPartition | None = None
    facts: tuple[str, ...] = ()
    """Contradicting facts: sentences that cannot all be true."""
    origin: str | None = None
    """For a crash: the project's module that raised, such as `broker.replication.follower`."""

    def __str__(self) -> str:
        when = "at the end" if self.at_seconds is None else f"{self.at_seconds:.3f}"
        where = "" if self.partition is None or str(self.partition) in self.text else f" {self.partition}"
        origin = "" if self.origin is None else f" (raised in {self.origin})"
        facts = "".join(f"\n    {each[:TEXT_MAX]}" for each in self.facts)
        return f"{when} {self.invariant}{where} {self.text[:TEXT_MAX]}{origin}{facts}"


def crash_finding(error: BaseException, at_seconds: float | None, subject: str = "the run") -> CheckerFinding:
    """A process, or the run itself, ended with this error; the first error of a group gives the origin."""
    cause = error
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, Unhandled) and cause.__cause__ is not None:
        cause = cause.__cause__  # the callback's own error, not the loop's report of it
    return CheckerFinding(
        invariant="crash",
        text=f"{subject} ended with {type(cause).__name__}: {cause}",
        at_seconds=at_seconds,
        origin=raised_in(cause),
    )


def raised_in(error: BaseException) -> str | None:
    """The project's module in the last frame, dotted, without the package name."""
    found = None
    for frame in traceback.extract_tb(error.__traceback__):
        path = PurePath(frame.filename).with_suffix("")
        for root in (PACKAGE, PACKAGE.parent):
            if path.is_relative_to(root) and not path.is_relative_to(root / ".venv"):
                found = ".".join(path.relative_to(root).parts)
                break
    return found
