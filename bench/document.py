"""Results of a run as one JSON document: machine, commit, configuration, every raw figure; read, written, merged.

Owns: the format. Tables, chart and page are made from it alone (report, chart, page).
"""

from collections.abc import Sequence

import msgspec

from minibroker.bench.case import ProcessCost

FORMAT = 1


class MachineDescription(msgspec.Struct, frozen=True):
    """The machine that was measured."""

    processor: str
    cores: int
    memory_gb: float
    kernel: str
    python: str
    file_system: str


class RoundResult(msgspec.Struct, frozen=True, kw_only=True):
    """One case on one peer, once."""

    peer: str
    number: int
    started: str
    """UTC, ISO 8601."""
    seconds: float
    """The whole round, topics and generators included."""
    load_average: float = 0.0
    """Of the machine over the last minute, when the round began: if it is much higher than a cluster's load, other
    programs were running."""
    figures: dict[str, float]
    costs: list[ProcessCost] = []
    notes: list[str] = []
    details: list[str] = []


class FailedRound(msgspec.Struct, frozen=True):
    """A worthless round, and the reason."""

    peer: str
    number: int
    reason: str


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds of one case, in the order in which they ran."""

    name: str
    title: str
    figure: str
    unit: str
    higher_is_better: bool
    rounds: list[RoundResult]
    failures: list[FailedRound] = []

    def values(self, peer: str, figure: str | None = None) -> dict[int, float]:
        """By the round's number. Rounds without this figure are left out."""
        wanted = figure or self.figure
        return {
            each.number: each.figures[wanted] for each in self.rounds if each.peer == peer and wanted in each.figures
        }

    def peers(self) -> list[str]:
        return list(dict.fromkeys(each.peer for each in self.rounds))


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """One run, or several that were merged."""

    format: int = FORMAT
    commit: str
    """Several, separated by commas, if parts of different commits were merged; + means that files differed from it."""
    started: str
    machine: MachineDescription
    configuration: dict[str, dict[str, str]]
    """By peer: version and settings."""
    options: dict[str, str]
    cases: list[CaseResult]

    def case(self, name: str) -> CaseResult | None:
        return next((case for case in self.cases if case.name == name), None)


class BadDocument(Exception):
    """The file is not such a document, or the given ones do not belong together. One sentence."""


def encode(document: Document) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def decode(data: bytes) -> Document:
    """Raises BadDocument."""
    try:
        found = msgspec.json.decode(data, type=Document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadDocument(f"it is not a document of `minibroker bench`: {error}") from None
    if found.format != FORMAT:
        raise BadDocument(f"it has format {found.format}, this minibroker reads {FORMAT}")
    return found


def merge(documents: Sequence[Document]) -> Document:
    """Merge parts of one run: all their cases; rounds of a case that occurs in several parts are numbered
    consecutively.

    Parts may come from several commits, which are then all named. Raises BadDocument if figures do not belong together:
    they come from different machines, or rounds of one case from different commits.
    """
    first = documents[0]
    cases: dict[str, CaseResult] = {}
    commits: dict[str, str] = {}
    for document in documents:
        if document.machine != first.machine:
            raise BadDocument("the documents come from different machines")
        for case in document.cases:
            commit = commits.setdefault(case.name, document.commit)
            if commit != document.commit:
                raise BadDocument(f"rounds of {case.name} come from different commits: {commit} and {document.commit}")
            before = cases.get(case.name)
            cases[case.name] = case if before is None else _appended(before, case)
    return msgspec.structs.replace(
        first,
        commit=", ".join(dict.fromkeys(document.commit for document in documents)),
        started=min(document.started for document in documents),
        configuration={peer: settings for document in documents for peer, settings in document.configuration.items()},
        options={name: value for document in documents for name, value in document.options.items()},
        cases=list(cases.values()),
    )


def _appended(before: CaseResult, after: CaseResult) -> CaseResult:
    numbers = [each.number for each in before.rounds] + [each.number for each in before.failures]
    first = max(numbers, default=-1) + 1
    rounds = [msgspec.structs.replace(each, number=each.number + first) for each in after.rounds]
    failures = [FailedRound(each.peer, each.number + first, each.reason) for each in after.failures]
    return msgspec.structs.replace(after, rounds=[*before.rounds, *rounds], failures=[*before.failures, *failures])
