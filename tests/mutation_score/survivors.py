"""The kept list of sorted survivors: survivors.toml, written by hand.

An entry names the change, not a line number, so that it holds while the code around it moves.
"""

import enum
import tomllib
from pathlib import Path

import msgspec

SURVIVORS = Path(__file__).with_name("survivors.toml")


class SurvivorClass(enum.StrEnum):
    """What a surviving change does to a user."""

    EQUIVALENT = "equivalent"
    """No test can tell it from the code."""
    HARMLESS = "harmless"
    """No promise breaks: a text, a limit that is somewhat larger, an order that does not matter."""
    HARMFUL = "harmful"
    """A promise breaks, or work is lost: a test or a checker is missing."""


class Survivor(msgspec.Struct, frozen=True, kw_only=True):
    """One entry."""

    name: str
    """As `DrawnMutant.name`; the report prints it."""
    where: str
    """Module and function, for readers."""
    change: str
    """`before -> after`, for readers."""
    sorted_as: SurvivorClass
    reason: str


class _File(msgspec.Struct, frozen=True):
    survivor: list[Survivor] = []


def load_survivors(path: Path = SURVIVORS) -> dict[str, Survivor]:
    """By name."""
    entries = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), type=_File).survivor
    found = {each.name: each for each in entries}
    assert len(found) == len(entries), "a survivor is sorted twice"
    return found
