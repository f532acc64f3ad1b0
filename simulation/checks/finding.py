"""What a judge says: which rule was broken, when, where, and the two facts that contradict each other.

Owns: the form of a finding, and from which module a crash came. Refuses to judge.
"""

import traceback
from pathlib import PurePath

from msgspec import Struct

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.loop import Unhandled

PACKAGE = PurePath(__file__).parents[2]
"""The folder that the packages are imported from, by links or, where there are none, the project's own."""
TEXT_MAX = 600


class CheckerFinding(Struct, frozen=True, kw_only=True):
    """One broken rule."""

    invariant: str
    """`I21`; an anomaly of the history by its name (`lost-write`); `audit:<rule>`; `crash` for a process that ended."""
    text: str
    at_seconds: float | None = None
    """Virtual seconds since the start of the run; None if it was found in what was left afterwards."""
    partition: TopicPartition | None = None
    facts: tuple[str, ...] = ()
    """What contradicts what: each is a sentence that cannot be true beside the others."""
    origin: str | None = None
    """For a crash: the module of the project that raised, as `broker.replication.follower`."""

    def __str__(self) -> str:
        when = "at the end" if self.at_seconds is None else f"{self.at_seconds:.3f}"
        where = "" if self.partition is None or str(self.partition) in self.text else f" {self.partition}"
        origin = "" if self.origin is None else f" (raised in {self.origin})"
        facts = "".join(f"\n    {each[:TEXT_MAX]}" for each in self.facts)
        return f"{when} {self.invariant}{where} {self.text[:TEXT_MAX]}{origin}{facts}"


def crash_finding(error: BaseException, at_seconds: float | None, who: str = "the run") -> CheckerFinding:
    """A process, or the run itself, ended with this; the first of a group tells where."""
    cause = error
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, Unhandled) and cause.__cause__ is not None:
        cause = cause.__cause__  # the callback's own, not the loop's report of it
    return CheckerFinding(
        invariant="crash",
        text=f"{who} ended with {type(cause).__name__}: {cause}",
        at_seconds=at_seconds,
        origin=raised_in(cause),
    )


def raised_in(error: BaseException) -> str | None:
    """The module of the last frame of the project, dotted, without the package's name."""
    found = None
    for frame in traceback.extract_tb(error.__traceback__):
        path = PurePath(frame.filename).with_suffix("")
        for root in (PACKAGE, PACKAGE.parent):
            if path.is_relative_to(root) and not path.is_relative_to(root / ".venv"):
                found = ".".join(path.relative_to(root).parts)
                break
    return found
