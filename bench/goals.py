"""The performance goals, and whether a document meets them. Pure.

A goal on a ratio is met when the 95 % bound of the median ratio meets it, not just the median: the lower bound where
more is better, the upper one where less is.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from minibroker.bench.document import CaseResult, Document
from minibroker.bench.statistics import Summary, ratios, summarise

OURS = "minibroker"


class Divisor(msgspec.Struct, frozen=True):
    """The divisor of a figure. Rounds with the same number are compared."""

    case: str
    figure: str
    peer: str = "kafka"


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list of goals."""

    what: str
    case: str
    figure: str
    limit: float
    at_least: bool = True
    """Else at most."""
    divisor: Divisor | None = None
    """None: the figure itself is compared with the limit."""
    by: Literal["bound", "median", "worst"] = "bound"
    unit: str = "x"

    def limit_text(self) -> str:
        sign = ">=" if self.at_least else "<="
        how = "" if self.by == "bound" else f"{self.by} "
        return f"{how}{sign} {self.limit:g} {self.unit}"


class GoalResult(msgspec.Struct, frozen=True):
    """A goal and its result; `summary` is None where the document has no such figures."""

    goal: Goal
    summary: Summary | None
    compared: float | None
    """The number that is compared with the limit."""

    @property
    def met(self) -> bool | None:
        """None: not measured."""
        if self.compared is None:
            return None
        return self.compared >= self.goal.limit if self.goal.at_least else self.compared <= self.goal.limit

    @property
    def result_text(self) -> str:
        return {True: "met", False: "missed", None: "not measured"}[self.met]


def _kafka(what: str, case: str, figure: str, limit: float, *, at_least: bool = True) -> Goal:
    """The same case and figure on Kafka."""
    return Goal(what=what, case=case, figure=figure, limit=limit, at_least=at_least, divisor=Divisor(case, figure))


def _gap(what: str, case: str, figure: str, limit_s: float) -> Goal:
    """One round runs all its failovers; its figures are their median and worst."""
    return Goal(
        what=f"writes stop after {what}",
        case=case,
        figure=figure,
        limit=limit_s,
        at_least=False,
        by="median" if figure == "median_gap_s" else "worst",
        unit="s",
    )


GOALS: tuple[Goal, ...] = (
    _kafka("produce 1 KB, 128 KiB batches", "produce-1kb-128kib", "mb_s", 2.0),
    _kafka("produce 1 KB, 1 MB batches", "produce-1kb-1mb", "mb_s", 1.3),
    _kafka("produce 1 KB, 16 KiB batches", "produce-1kb-16kib", "mb_s", 3.0),
    _kafka("produce 100 B, 128 KiB batches, one per call, records/s", "produce-100b-single", "records_s", 1.5),
    _kafka("the same, 1,000 per call on both sides", "produce-100b", "records_s", 1.5),
    Goal(
        what="one per call against aiokafka on Kafka",
        case="produce-100b-single",
        figure="records_s",
        limit=4.0,
        divisor=Divisor("produce-100b-aiokafka", "records_s"),
    ),
    Goal(what="of the bare data path at 100 kB frames, 100 per call", case="share-of-bare", figure="share", limit=0.7),
    Goal(what="the same, one per call", case="share-of-bare", figure="one_a_call_share", limit=0.7),
    _kafka("latency 1 KB at 1,000/s, p50", "latency-1000", "p50_ms", 0.7, at_least=False),
    _kafka("latency 1 KB at 1,000/s, p99", "latency-1000", "p99_ms", 0.5, at_least=False),
    _kafka("consume 1 KB, hot", "consume-1kb", "mb_s", 1.0),
    _kafka("consume 100 B, hot", "consume-100b", "mb_s", 1.0),
    _kafka("produce over 1,000 partitions, keyed", "partitions-1000", "mb_s", 2.0),
    Goal(what="ours, against ours over 1 partition, without keys", case="partitions-1000", figure="of_one", limit=0.7),
    _gap("SIGKILL of the leader", "failover-leader", "median_gap_s", 0.3),
    _gap("SIGKILL of the leader", "failover-leader", "worst_gap_s", 0.5),
    _gap("SIGKILL of leader and controller in one", "failover-both", "worst_gap_s", 1.0),
    _gap("SIGTERM of the leader", "failover-leader-stopped", "worst_gap_s", 0.2),
    Goal(
        what="errors that an idempotent producer sees after it",
        case="failover-leader-stopped",
        figure="errors",
        limit=0,
        at_least=False,
        by="worst",
        unit="errors",
    ),
    Goal(
        what="memory of one broker under load",
        case="memory",
        figure="broker_peak_rss_mb",
        limit=120,
        at_least=False,
        by="worst",
        unit="MB",
    ),
    Goal(
        what="audit by Spark, of a plain walk with CRC by two processes",
        case="audit",
        figure="spark_of_plain_walk",
        limit=0.3,
        by="worst",
    ),
)


def check_goals(document: Document, goals: Sequence[Goal] = GOALS) -> list[GoalResult]:
    return [_result(document, goal) for goal in goals]


def _result(document: Document, goal: Goal) -> GoalResult:
    values = _values(document.case(goal.case), OURS, goal.figure)
    if goal.divisor is not None:
        theirs = _values(document.case(goal.divisor.case), goal.divisor.peer, goal.divisor.figure)
        found = ratios(values, theirs)
    else:
        found = list(values.values())
    if not found:
        return GoalResult(goal, None, None)
    summary = summarise(found)
    if goal.by == "median":
        compared = summary.median
    elif goal.by == "worst":
        compared = summary.lowest if goal.at_least else summary.highest
    else:
        compared = summary.lower if goal.at_least else summary.upper
    return GoalResult(goal, summary, compared)


def _values(case: CaseResult | None, peer: str, figure: str) -> dict[int, float]:
    return {} if case is None else case.values(peer, figure)
