"""A failover as a producer sees it, and the time spent in each step.

Owns: the longest gap between acknowledgements, and its breakdown from the brokers' own log lines. Pure.

Brokers log the time of day in milliseconds; the bench reads the same clock when it sends the signal.
"""

import itertools
import re
from collections.abc import Iterable, Sequence

import msgspec

from minibroker.bench.broker_log import LogLine

NS_PER_MS = 1e6


class FailoverStep(msgspec.Struct, frozen=True):
    """A step of a failover: the first matching log line after the signal."""

    name: str
    pattern: re.Pattern[str]


STEPS = (
    FailoverStep("handing_over_ms", re.compile(r"^handing leaderships over")),
    FailoverStep("gone_ms", re.compile(r"^broker \d+ is gone")),
    FailoverStep("confirmed_ms", re.compile(r"is dead: its connection was lost")),
    FailoverStep("controller_ms", re.compile(r"^took over as controller")),
    FailoverStep("elected_ms", re.compile(r": leader \d+ -> \d+, epoch")),
    FailoverStep("leading_ms", re.compile(r": leader in leader epoch")),
)
"""Milliseconds from the signal to: a stopping broker begins to hand over; a registration is gone; a second broker
confirmed the failure; the next controller is active; the election is written; the new leader leads."""


class AcknowledgementGap(msgspec.Struct, frozen=True):
    """The longest time without an acknowledgement that ends after the signal."""

    seconds: float
    starts_ms: float
    """From the signal to the last acknowledgement before the gap; negative: it was before the signal."""
    ends_ms: float


def longest_gap(acknowledged_ns: Sequence[int], signalled_ns: int) -> AcknowledgementGap | None:
    """None if nothing was acknowledged after the signal."""
    gaps = [
        (after - before, before, after) for before, after in itertools.pairwise(acknowledged_ns) if after > signalled_ns
    ]
    if not gaps:
        return None
    length, before, after = max(gaps)
    return AcknowledgementGap(length / 1e9, (before - signalled_ns) / NS_PER_MS, (after - signalled_ns) / NS_PER_MS)


def step_times(lines: Iterable[LogLine], signalled_s: float, until_s: float) -> dict[str, float]:
    """Milliseconds from the signal to the first line of each step, if there is one."""
    within = sorted((line for line in lines if signalled_s - 0.001 <= line.at_s <= until_s), key=lambda line: line.at_s)
    found: dict[str, float] = {}
    for step in STEPS:
        first = next((line for line in within if step.pattern.search(line.text)), None)
        if first is not None:
            found[step.name] = max(0.0, (first.at_s - signalled_s) * 1000)
    return found
