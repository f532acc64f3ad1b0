"""What all events have: a name, a level and a sentence.

Owns: the base classes. Leaves to others: the events.
"""

import re
from typing import ClassVar

import msgspec

INFO, WARNING, ERROR = 20, 30, 40
"""Levels of the standard library's logging."""
LEVEL_NAMES = {INFO: "INFO", WARNING: "WARNING", ERROR: "ERROR"}


def snake_case(name: str) -> str:
    """The name of an event in JSON."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class ClusterEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=snake_case):
    """Base of all events. `TEXT` is the sentence of the log, filled with the fields."""

    LEVEL: ClassVar[int] = INFO
    TEXT: ClassVar[str] = ""

    def text(self) -> str:
        """One line for people."""
        return self.TEXT.format(**msgspec.structs.asdict(self))

    def __str__(self) -> str:
        return self.text()

    @property
    def level(self) -> int:
        """Some events are a warning or not by their fields."""
        return self.LEVEL


class PartitionEvent(ClusterEvent, frozen=True, kw_only=True):
    """Base of the events of one partition."""

    topic: str
    partition: int
