"""What a scenario is: variants with a setup and a script, the expected ending, and the text of its page.

Owns: plain data. Leaves to others: stages and output.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from minibroker.broker.replication.state import TruncationRule

__all__ = [
    "BOTH_RULES",
    "HIGH_WATERMARK",
    "LEADER_EPOCH",
    "TOPIC",
    "Ending",
    "Page",
    "Scenario",
    "Setup",
    "TruncationRule",
    "Variant",
]

TOPIC = "lines"
LEADER_EPOCH, HIGH_WATERMARK = TruncationRule.LEADER_EPOCH, TruncationRule.HIGH_WATERMARK
BOTH_RULES = (LEADER_EPOCH, HIGH_WATERMARK)


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers of a variant and their settings. Brokers are letters: A is broker 1."""

    brokers: str = "ABC"
    replicas: str = "ABC"
    """In the order of the assignment: the first leads at the beginning."""
    controller: str | None = None
    """The controller at the beginning; None: the last broker."""
    min_insync_replicas: int = 1
    settings: dict[str, str] = {}
    """Of all brokers."""
    configs: dict[str, str] = {}
    """Of the topic."""
    delivery_timeout_ms: int = 120_000
    """How long producers try."""
    metadata_max_age_ms: int = 300_000


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What the audit must find on the disks, and what the run teaches."""

    lesson: str
    findings: tuple[str, ...] = ()
    """Kinds of errors that the audit must find (`Kind` in audit/checks/findings.py), all of them and no others; empty:
    consistent."""


Play = Callable[[Any], Awaitable[Ending]]
"""Plays a variant on a Stage, or on the one kind of stage that its verbs need."""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One script, played on a fresh cluster. A scenario with several compares them."""

    name: str = ""
    """Short; empty if the scenario has one variant."""
    title: str = ""
    setup: Setup
    play: Play
    live: bool = False
    """Whether the script can also be played on real processes."""
    patch: Callable[[], AbstractContextManager[None]] | None = None
    """Removes a rule from the brokers while the variant runs, to show why it exists. No broker has a switch for it."""
    patched: str = ""
    """What the patch changes, as a sentence."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The text of docs/scenarios/<name>.md besides the printed runs. Markdown."""

    summary: str
    rule: str
    source: str
    old_texts: str = ""
    """What older texts say, and what is right."""
    limits: str = ""
    """What this cannot show, or what this version lacks."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the list of scenarios."""

    name: str
    title: str
    variants: tuple[Variant, ...]
    page: Page
    rules: tuple[TruncationRule, ...] = (LEADER_EPOCH,)
    """Truncation rules that it can be played under: both, if the rule makes a difference."""
