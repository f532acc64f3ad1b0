"""A failover as a producer sees it, and the time spent in each step.

Owns: the longest gap between acknowledgements, and its breakdown from the brokers' own events. Pure.

Brokers log the time of day in milliseconds; the bench reads the same clock when it sends the signal.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence

import msgspec

from minibroker.bench.broker_log import LoggedEvent

NS_PER_MS = 1e6


class FailoverStep(msgspec.Struct, frozen=True):
    """A step of a failover: the first matching event after the signal."""

    name: str
    is_met: Callable[[LoggedEvent], bool]


STEPS = (
    FailoverStep("handing_over_ms", lambda event: event.name == "handover_begun"),
    FailoverStep("gone_ms", lambda event: event.name == "broker_left"),
    FailoverStep("confirmed_ms", lambda event: event.name == "broker_failure_confirmed"),
    FailoverStep("controller_ms", lambda event: event.name == "controller_elected"),
    FailoverStep("elected_ms", lambda event: event.name == "leadership_changed" and event.fields["leader"] is not None),
    FailoverStep("leading_ms", lambda event: event.name == "replica_role_changed" and event.fields["role"] == "leader"),
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


def step_times(events: Iterable[LoggedEvent], signalled_s: float, until_s: float) -> dict[str, float]:
    """Milliseconds from the signal to the first event of each step, if there is one."""
    within = sorted((event for event in events if signalled_s - 0.001 <= event.at_s <= until_s), key=lambda e: e.at_s)
    found: dict[str, float] = {}
    for step in STEPS:
        first = next((event for event in within if step.is_met(event)), None)
        if first is not None:
            found[step.name] = max(0.0, (first.at_s - signalled_s) * 1000)
    return found
