"""Log lines of real brokers while a scenario runs, phrased as on the simulated stage.

Owns: reading on from where the last read ended, and parsing a line by the program's own template.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from minibroker.scenarios.staging.broker_logs import LOG_LINES, Arguments

ANYTHING = "%s: %s"
"""A template that matches any line."""
_HEAD = r"\S+ \S+ [A-Z]+ minibroker\.[a-z_.]+: "
_PLACE = re.compile("%[sd]")


def _pattern(template: str) -> re.Pattern[str]:
    pieces = [re.escape(piece) for piece in _PLACE.split(template)]
    return re.compile(_HEAD + "(.*?)".join(pieces) + "$")


_PATTERNS = [(_pattern(template), put) for template, put in LOG_LINES.items() if template != ANYTHING]


class LogWatcher:
    """One broker's log. `new_events` returns the events since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def new_events(self) -> Iterator[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                content = file.read()
        except FileNotFoundError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            for pattern, put in _PATTERNS:
                found = pattern.match(line)
                if found is not None:
                    yield put(_arguments(found.groups()))
                    break


def _arguments(groups: tuple[str, ...]) -> Arguments:
    """Lists are parsed, everything else stays as printed."""
    return tuple(ast.literal_eval(group) if re.fullmatch(r"\[[0-9, ]*\]", group) else group for group in groups)
