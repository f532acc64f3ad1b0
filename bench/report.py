"""Tables from a document: the result of each peer, the ratios, and the goals. Pure.

Owns: which rows there are and how numbers are written. The terminal, the page and the chart show the same rows.
"""

import statistics

import msgspec

from minibroker.bench.document import CaseResult, Document
from minibroker.bench.goals import GOALS, OURS, GoalResult, check_goals
from minibroker.bench.statistics import Summary, ratios, summarise

KAFKA = "kafka"
BUSY_LOAD_A_CORE = 5.0
"""Three brokers and a client keep fewer threads running, also with Kafka; a higher load comes from other programs."""
MEMORY = (
    "broker_peak_rss_mb",
    "broker_growth_mb",
    *(f"{role}_cpu_s_per_gb" for role in ("leader", "followers", "zookeeper", "client")),
)
SHOWN_BESIDES = {
    "latency-1000": ("p50_ms", "p999_ms"),
    "latency-15000": ("p50_ms", "p999_ms"),
    "end-to-end": ("p50_ms",),
    "consume-1kb": ("getmany_mb_s",),
    "consume-100b": ("getmany_mb_s",),
    "consume-1kb-cold": ("getmany_mb_s",),
    "mixed": ("produce_mb_s",),
    "share-of-bare": ("bare_mb_s", "one_a_call_share"),
    "partitions-1000": ("one_partition_mb_s",),
    **{
        f"failover-{where}{target}": ("worst_gap_s",)
        for where in ("", "compose-")
        for target in ("leader", "controller", "both", "leader-stopped", "leader-paused")
    },
    "start-cluster": ("registered_s",),
    "start-command-line": ("produce_help_ms",),
    "recovery": ("mb_s", "walk_mb_s"),
    "audit": ("spark_mb_s", "local_mb_s", "walk_mb_s", "spark_start_s"),
    "memory": MEMORY,
    "memory-kafka-256m": MEMORY,
}
"""Further figures of a case, with rows of their own below its main one."""
KAFKA_COUNTERPART = {"getmany_mb_s": "mb_s"}
"""Where a figure has another name on Kafka."""
HEADER = ("case", "minibroker", "spread", "Kafka", "spread", "ratio", "95 % bound", "alternations")
GOAL_HEADER = ("goal", "wanted", "ratio or figure", "judged", "")
COST_HEADER = ("case", "minibroker: cluster", "client", "broker MB", "Kafka: cluster", "client", "broker MB")
COSTS = ("cluster_cpu_s_per_gb", "client_cpu_s_per_gb", "broker_peak_rss_mb")
UNITS = {
    "cpu_s_per_gb": "CPU s/GB",
    "mb_s": "MB/s",
    "ms": "ms",
    "records_s": "records/s",
    "s": "s",
    "mb": "MB",
    "share": "x",
}
"""By the suffix of a figure's name; longer suffixes first."""


class ReportRow(msgspec.Struct, frozen=True):
    """One figure of one case."""

    title: str
    unit: str
    higher_is_better: bool
    ours: Summary | None
    theirs: Summary | None
    ratio: Summary | None

    @property
    def bound(self) -> float | None:
        """The cautious bound of the ratio."""
        if self.ratio is None:
            return None
        return self.ratio.lower if self.higher_is_better else self.ratio.upper

    def cells(self) -> tuple[str, ...]:
        return (
            f"{self.title}, {self.unit}" if self.unit else self.title,
            median(self.ours),
            spread(self.ours),
            median(self.theirs),
            spread(self.theirs),
            "-" if self.ratio is None else f"{self.ratio.median:.2f} x",
            "-" if self.bound is None else f"{'>=' if self.higher_is_better else '<='} {self.bound:.2f}",
            str(max((each.count for each in (self.ours, self.theirs) if each is not None), default=0)),
        )


def rows_of(document: Document) -> list[ReportRow]:
    return [row for case in document.cases for row in _rows(case)]


def _rows(case: CaseResult) -> list[ReportRow]:
    rows = [_row(case, case.figure, case.title, case.unit)]
    subject = case.title.removesuffix(f", {figure_words(case.figure)}")
    for figure in SHOWN_BESIDES.get(case.name, ()):
        rows.append(_row(case, figure, f"{subject}, {figure_words(figure)}", _unit(figure)))
    return [row for row in rows if row.ours is not None or row.theirs is not None]


def figure_words(figure: str) -> str:
    """`p50` of p50_ms, `getmany` of getmany_mb_s."""
    words = next((figure.removesuffix(f"_{unit}") for unit in UNITS if figure.endswith(f"_{unit}")), figure)
    return words.replace("p999", "p99.9").replace("_", " ")


def _unit(figure: str) -> str:
    return next((word for unit, word in UNITS.items() if figure == unit or figure.endswith(f"_{unit}")), "")


def _row(case: CaseResult, figure: str, title: str, unit: str) -> ReportRow:
    ours = case.values(OURS, figure)
    theirs = case.values(KAFKA, KAFKA_COUNTERPART.get(figure, figure))
    compared = ratios(ours, theirs)
    return ReportRow(
        title=title,
        unit=unit,
        higher_is_better=case.higher_is_better,
        ours=summarise(list(ours.values())) if ours else None,
        theirs=summarise(list(theirs.values())) if theirs else None,
        ratio=summarise(compared) if compared else None,
    )


def cost_rows(document: Document) -> list[tuple[str, ...]]:
    """CPU seconds a GB, and the peak memory of a broker, in medians; cases without them are left out."""
    rows = []
    for case in document.cases:
        found = [case.values(peer, figure) for peer in (OURS, KAFKA) for figure in COSTS]
        if any(found):
            cells = [number(summarise(list(values.values())).median) if values else "-" for values in found]
            rows.append((case.title, *cells))
    return rows


def goal_rows(document: Document) -> list[tuple[str, ...]]:
    return [_goal_cells(result) for result in check_goals(document, GOALS)]


def _goal_cells(result: GoalResult) -> tuple[str, ...]:
    found = "-" if result.summary is None else f"{number(result.summary.median)} {result.goal.unit}"
    judged = "-" if result.compared is None else number(result.compared)
    return (result.goal.what, result.goal.limit_text(), found, judged, result.result_text)


def failures(document: Document) -> list[str]:
    """What a reader must know: failed rounds, and remarks on others."""
    found = [
        f"{case.name}, round {each.number} on {each.peer}: {each.reason}"
        for case in document.cases
        for each in case.failures
    ]
    remarks = [
        f"{case.name} on {each.peer}: {note}" for case in document.cases for each in case.rounds for note in each.notes
    ]
    loads = [each.load_average for case in document.cases for each in case.rounds]
    if loads and max(loads) > BUSY_LOAD_A_CORE * document.machine.cores:
        found.insert(
            0,
            f"the machine had other work: its load average was {statistics.median(loads):.0f} in the median round and"
            f" {max(loads):.0f} in the worst, on {document.machine.cores} cores; such figures say little",
        )
    return [*found, *dict.fromkeys(remarks)]


def details(document: Document) -> list[str]:
    """What single figures are made of, one line each; not on the page."""
    return [
        f"{case.name} on {each.peer}: {line}"
        for case in document.cases
        for each in case.rounds
        for line in each.details
    ]


def number(value: float | None) -> str:
    """With three significant digits."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def median(summary: Summary | None) -> str:
    return "-" if summary is None else number(summary.median)


def spread(summary: Summary | None) -> str:
    return "-" if summary is None else f"{number(summary.lowest)} to {number(summary.highest)}"
