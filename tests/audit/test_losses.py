"""What holds in every cell of the table of losses (docs/AUDIT.md); the cells themselves are in the table."""

from pathlib import Path

import pytest

from minibroker.audit.checks.findings import Kind, Severity
from minibroker.audit.reports.report import AuditOutcome
from tests.audit.losses.catalogue import LAWFUL, LOSSES, PLACES, Row, scene_at, scene_of
from tests.audit.losses.scene import WITH_STATE, Audited, KnownSources, audit

CASES = [(row, count) for row in LOSSES for count in row.on]
LAWFUL_CASES = [(row, count) for row in LAWFUL for count in row.on]


def named(case: object) -> str:
    return case.what if isinstance(case, Row) else str(case)


def outcome(audited: Audited) -> AuditOutcome | None:
    """None: the audit could not run, and gave the reason."""
    return audited.report.outcome if audited.report is not None else None


def error_kinds(audited: Audited) -> set[Kind]:
    assert audited.report is not None
    return {item.kind for item in audited.report.findings if item.severity is Severity.ERROR} - {Kind.UNPROVEN}


@pytest.mark.parametrize(("row", "count"), CASES, ids=named)
def test_each_loss_is_found_with_all_sources(row: Row, count: int, tmp_path: Path) -> None:
    """A column with more sources finds whatever the others find; without a source of what is expected nothing is called
    consistent."""
    scene = scene_of(row, count, tmp_path)
    outcomes = {known: outcome(audit(scene, known)) for known in KnownSources}
    assert outcomes[KnownSources.ALL] in (AuditOutcome.INCONSISTENT, None)
    if AuditOutcome.INCONSISTENT in (outcomes[KnownSources.NOTHING], outcomes[KnownSources.STATE]):
        assert outcomes[KnownSources.WITNESS] is AuditOutcome.INCONSISTENT
    assert AuditOutcome.CONSISTENT not in (outcomes[KnownSources.NOTHING], outcomes[KnownSources.LIST])


@pytest.mark.parametrize(("row", "count"), LAWFUL_CASES, ids=named)
def test_lawful_states_are_not_called_a_loss(row: Row, count: int, tmp_path: Path) -> None:
    scene = scene_of(row, count, tmp_path)
    for known in KnownSources:
        audited = audit(scene, known)
        assert outcome(audited) is not None, audited.refusal
        # Disks that contradict each other are reported where no source shows which one is right.
        allowed = set() if known in WITH_STATE or known is KnownSources.ZOOKEEPER else {Kind.TOPIC_ID_DIFFERS}
        assert error_kinds(audited) <= allowed, (known, error_kinds(audited))


@pytest.mark.parametrize(("name", "number", "count"), PLACES)
def test_a_damaged_batch_is_found_at_any_place(name: str, number: int, count: int, tmp_path: Path) -> None:
    assert outcome(audit(scene_at(name, number, count, tmp_path), KnownSources.WITNESS)) is AuditOutcome.INCONSISTENT
