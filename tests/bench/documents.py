"""Invented documents for the tests of tables, chart and page."""

from minibroker.bench.document import CaseResult, Document, FailedRound, MachineDescription, RoundResult

MACHINE = MachineDescription(
    processor="a processor", cores=2, memory_gb=8.0, kernel="6.1", python="3.11.7", file_system="ext4"
)


def rounds(peer: str, values: list[float], figure: str = "mb_s") -> list[RoundResult]:
    return [
        RoundResult(peer=peer, number=number, started="2026-11-21T16:00:00+00:00", seconds=3.0, figures={figure: value})
        for number, value in enumerate(values)
    ]


def case(
    name: str, ours: list[float], theirs: list[float], *, figure: str = "mb_s", unit: str = "MB/s", more: bool = True
) -> CaseResult:
    return CaseResult(
        name=name,
        title=f"title of {name}",
        figure=figure,
        unit=unit,
        higher_is_better=more,
        rounds=[*rounds("minibroker", ours, figure), *rounds("kafka", theirs, figure)],
    )


def document(*cases: CaseResult, commit: str = "0123456789") -> Document:
    return Document(
        commit=commit,
        started="2026-11-21T16:00:00+00:00",
        machine=MACHINE,
        configuration={"minibroker": {"version": "0.1.0"}, "kafka": {"version": "3.9.1"}},
        options={"alternations": "3"},
        cases=list(cases),
    )


FAILURE = FailedRound("kafka", 1, "3 of 4 records were acknowledged")
