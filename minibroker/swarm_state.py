"""The file in which a long swarm keeps what it has done, so that it can go on after Ctrl-C or a reboot.

Owns: the file, and whether it belongs to this code and these options. Leaves to others: the runs (`swarm_runs`).
"""

import os
import time
from collections.abc import Callable, Iterator
from itertools import filterfalse
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_origin

import msgspec

from minibroker.audit.reading.regular_files import read_regular
from minibroker.protocol.counted import counted
from minibroker.swarm_runs import SwarmSummary

SAVE_SECONDS = 10
"""Between two writes. A killed process loses at most the runs of that time, and they run again."""
STATE_BYTES_MAX = 256 * 1024 * 1024


Version: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-z-]{0,128}\Z")]
"""A part of it becomes a part of a file's name."""


class OtherOptions(Exception):
    """The file is of a swarm with other options; the message names them."""


class NoState(Exception):
    """The file is not the state of a swarm."""


class SwarmState(msgspec.Struct, kw_only=True):
    """Of one long swarm."""

    commit: Version
    """The commit at which it began, in full, or "" where git knew none."""
    code: Version
    """See `code_digest`: the seeds of other code are other runs."""
    options: dict[str, Any]
    """Brokers, faults and loads: all but the seeds."""
    first_seed: Annotated[int, msgspec.Meta(ge=0)]
    done_below: int
    """Every seed from the first one to this, exclusively, has run."""
    done_above: set[int] = msgspec.field(default_factory=set)
    """Seeds from there on that have run, too: workers end in no order."""
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Real seconds of all sessions."""
    summary: SwarmSummary

    def left(self, seeds: int) -> Iterator[int]:
        """Which of so many seeds have not run by now."""
        done_above = frozenset(self.done_above)
        return filterfalse(done_above.__contains__, range(self.done_below, self.first_seed + seeds))

    @property
    def done(self) -> int:
        """How many have run."""
        return self.done_below - self.first_seed + len(self.done_above)

    def add(self, seed: int) -> None:
        """This seed has run, and is in the summary."""
        self.done_above.add(seed)
        while self.done_below in self.done_above:
            self.done_above.remove(self.done_below)
            self.done_below += 1


class StateFile:
    """Where it is, and when it was last written."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._saved_at = clock()

    def load(self) -> SwarmState | None:
        """None if there is no file; raises NoState for another kind of file, and OSError, also for a pipe."""
        try:
            content = read_regular(str(self.path), STATE_BYTES_MAX)
        except FileNotFoundError:
            return None
        try:
            found = msgspec.json.decode(content, type=SwarmState, dec_hook=_restore)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NoState(f"{self.path} is not the state of a swarm, or is of another version: {error}") from None
        if found.done_below < found.first_seed:
            raise NoState(f"{self.path} is not the state of a swarm: it has done seeds from before its first")
        return found

    def set_aside(self, state: SwarmState) -> Path:
        """Give way to a swarm of other code; returns the new name."""
        aside = self.path.with_name(f"{self.path.name}.{state.commit[:12] or state.code[:12]}")
        self.path.replace(aside)
        return aside

    def save_now_and_then(self, state: SwarmState) -> None:
        if self._clock() - self._saved_at >= SAVE_SECONDS:
            self.save(state)

    def save(self, state: SwarmState) -> None:
        """Write it so that a reboot leaves the old or the new content."""
        beside = self.path.with_name(f"{self.path.name}.new")
        with beside.open("wb") as file:
            file.write(msgspec.json.encode(state))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
        self._saved_at = self._clock()


def _restore(kind: Any, value: Any) -> Any:
    """JSON has no counters: one of these names must be an object of whole numbers."""
    return (get_origin(kind) or kind)(msgspec.convert(value, dict[str, int]))


def continued(file: StateFile, new: SwarmState, say: Callable[[str], None]) -> SwarmState:
    """The state to go on from: that of the file if the code is the same, else `new`. Raises OtherOptions, NoState."""
    found = file.load()
    if found is None:
        return new
    runs = f"{counted(found.summary.runs, 'run')}, {len(found.summary.failed)} failed"
    if found.code != new.code:
        aside = file.set_aside(found)
        say(f"{file.path} is of other code (commit {found.commit[:12] or 'unknown'}; {runs}): kept as {aside}")
        return new
    if found.options != new.options:
        names = sorted({*found.options, *new.options})
        differing = [name for name in names if found.options.get(name) != new.options.get(name)]
        text = ", ".join(f"{name}={found.options.get(name)}" for name in differing)
        raise OtherOptions(f"{file.path} is of a swarm with {text}: give the same options, or another file")
    say(f"{file.path}: going on after {runs}")
    return found
