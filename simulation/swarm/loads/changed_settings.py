"""Which value each changed setting may have: the one confirmed last, or one of unknown outcome. Pure.

A change without an answer may be carried out at any time, so its value stays possible for the rest of the run.
"""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

Owner: TypeAlias = str | int
"""A topic by its name, or a broker by its id."""


class ChangedSettings:
    """Of one run."""

    def __init__(self) -> None:
        self._confirmed: dict[tuple[Owner, str], str | None] = {}
        self._in_doubt: dict[tuple[Owner, str], list[str | None]] = {}

    def confirmed(self, of: Owner, changes: Mapping[str, str | None]) -> None:
        """These changes were answered (None: back to the brokers' default, or to what the broker was started with)."""
        self._confirmed |= {(of, name): value for name, value in changes.items()}

    def in_doubt(self, of: Owner, changes: Mapping[str, str | None]) -> None:
        """These changes failed, or were not answered."""
        for name, value in changes.items():
            self._in_doubt.setdefault((of, name), []).append(value)

    def owners(self) -> list[Owner]:
        """Whose settings were changed."""
        return sorted({of for of, _ in self._confirmed}, key=str)

    def wrong(self, of: Owner, own: Mapping[str, str | None]) -> Iterator[str]:
        """What contradicts the confirmed changes. `own`: the settings that the topic or broker overrides now."""
        for (changed, name), value in self._confirmed.items():
            if changed == of and own.get(name) not in (value, *self._in_doubt.get((changed, name), ())):
                yield f"{name} is {own.get(name)}, and was changed to {value}"
