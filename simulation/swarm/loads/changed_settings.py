"""Which value each changed setting of a topic may have: the one confirmed last, or one of unknown outcome. Pure.

A change without an answer may be carried out at any time, so its value stays possible for the rest of the run.
"""

from collections.abc import Iterator, Mapping


class ChangedSettings:
    """Of one run."""

    def __init__(self) -> None:
        self._confirmed: dict[tuple[str, str], str | None] = {}
        self._in_doubt: dict[tuple[str, str], list[str | None]] = {}

    def confirmed(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """These changes were answered (None: back to the brokers' default)."""
        self._confirmed |= {(topic, name): value for name, value in changes.items()}

    def in_doubt(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """These changes failed, or were not answered."""
        for name, value in changes.items():
            self._in_doubt.setdefault((topic, name), []).append(value)

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self._confirmed})

    def wrong(self, topic: str, own: Mapping[str, str | None]) -> Iterator[str]:
        """What contradicts the confirmed changes. `own`: the settings that the topic overrides now."""
        for (changed, name), value in sorted(self._confirmed.items()):
            if changed == topic and own.get(name) not in (value, *self._in_doubt.get((topic, name), ())):
                yield f"{name} is {own.get(name)}, and was changed to {value}"
