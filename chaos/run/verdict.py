"""The verdict on a run: convicted, cleared, or nothing was tested. Pure but for the audit's own form.

Owns: what makes a run count, and what convicts it. Leaves to others: the anomalies (`chaos/history/`), the audit.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

ACKNOWLEDGED_MIN = 100
ELECTIONS_MIN = 1
Outcome: TypeAlias = Literal["cleared", "convicted", "nothing was tested"]


class Verdict(Struct, frozen=True, kw_only=True):
    """On one run."""

    outcome: Outcome
    reasons: tuple[str, ...]
    """What convicts it, or what it lacks."""

    @property
    def exit_code(self) -> int:
        return {"cleared": 0, "convicted": 10, "nothing was tested": 1}[self.outcome]


def judge(
    *,
    anomalies: Mapping[str, int],
    audit_problems: Sequence[str],
    why_no_audit: str | None,
    why_no_load: str | None = None,
    troubles: Sequence[str],
    elections: int,
    acknowledged: int,
    read: Mapping[str, int],
) -> Verdict:
    """`anomalies`: how many, by name. `why_no_audit`: None if there was one. `why_no_load`: what a program that was
    the load did wrong. `read`: records read by partition, of every partition."""
    reasons = [f"{name} ({count})" for name, count in anomalies.items()]
    reasons += [f"audit: {problem}" for problem in audit_problems]
    reasons += troubles
    if reasons:
        return Verdict(outcome="convicted", reasons=tuple(reasons))
    lacking = [] if why_no_audit is None else [f"the disks were not audited: {why_no_audit}"]
    if why_no_load is not None:  # then the rest is its consequence
        return Verdict(outcome="nothing was tested", reasons=(why_no_load,))
    if elections < ELECTIONS_MIN:
        lacking.append("no leader was elected during the run: give it faults of leaders, or more time")
    if acknowledged < ACKNOWLEDGED_MIN:
        lacking.append(f"{acknowledged} records were acknowledged, {ACKNOWLEDGED_MIN} are needed: give it more time")
    unread = sorted(key for key, count in read.items() if not count)
    if unread:
        lacking.append(f"no record of {', '.join(unread)} was read")
    if lacking:
        return Verdict(outcome="nothing was tested", reasons=tuple(lacking))
    return Verdict(outcome="cleared", reasons=())
