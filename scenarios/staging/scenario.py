"""What a story is: acts with a cast and a script, the end it expects, and what its page says.

Owns: plain data. Refuses to know stages' insides and output.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from minibroker.broker.replication.state import TruncationRule

if TYPE_CHECKING:
    from minibroker.scenarios.staging.stage import Stage

__all__ = [
    "BOTH_RULES",
    "HIGH_WATERMARK",
    "LEADER_EPOCH",
    "TOPIC",
    "Act",
    "Cast",
    "Ending",
    "Page",
    "Scenario",
    "TruncationRule",
]

TOPIC = "story"
LEADER_EPOCH, HIGH_WATERMARK = TruncationRule.LEADER_EPOCH, TruncationRule.HIGH_WATERMARK
BOTH_RULES = (LEADER_EPOCH, HIGH_WATERMARK)


class Cast(msgspec.Struct, frozen=True, kw_only=True):
    """Who plays. Brokers are letters: A is broker 1."""

    brokers: str = "ABC"
    replicas: str = "ABC"
    """In the order of the assignment: the first leads at the beginning."""
    controller: str | None = None
    """Who is controller at the beginning; None: it does not matter, the last broker is."""
    min_insync_replicas: int = 1
    settings: dict[str, str] = {}
    """Of all brokers."""
    configs: dict[str, str] = {}
    """Of the topic."""
    delivery_timeout_ms: int = 120_000
    """How long producers try."""
    metadata_max_age_ms: int = 300_000


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What the audit must say of the disks, and the moral."""

    moral: str
    findings: tuple[str, ...] = ()
    """Kinds of errors that the audit must find (audit.findings.Kind), all of them and no others; empty: consistent."""


Play = Callable[[Any], Awaitable[Ending]]


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """One performance on a fresh cluster."""

    name: str = ""
    """Short; empty if the story has one act."""
    title: str = ""
    cast: Cast
    play: "Callable[[Stage], Awaitable[Ending]] | Play"
    live: bool = False
    """Whether the script can also be played on real processes."""
    patch: Callable[[], AbstractContextManager[None]] | None = None
    """Takes a rule out of the brokers while the act plays, to show why it is there. No broker has a switch for it."""
    patched: str = ""
    """What the patch takes out, as a sentence."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What docs/scenarios/<name>.md says beside the printed runs. Markdown."""

    summary: str
    rule: str
    source: str
    old_texts: str = ""
    """How older texts put it, and how it is."""
    limits: str = ""
    """What this cannot show, or is not in this version."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the list of stories."""

    name: str
    title: str
    acts: tuple[Act, ...]
    page: Page
    rules: tuple[TruncationRule, ...] = (LEADER_EPOCH,)
    """Truncation rules under which it is told: both, where that matters."""
