"""What holds in every cell of the table of losses (docs/AUDIT.md); the cells themselves are in the table."""

from pathlib import Path

import pytest

from minibroker.audit.findings import Kind, Severity
from minibroker.audit.report import AuditOutcome
from tests.audit.losses.catalogue import LAWFUL, LOSSES, PLACES, Row, scene_at, scene_of
from tests.audit.losses.scene import WITH_STATE, Audited, Known, audit

CASES = [(row, count) for row in LOSSES for count in row.on]
LAWFUL_CASES = [(row, count) for row in LAWFUL for count in row.on]


def named(case: object) -> str:
    return case.what if isinstance(case, Row) else str(case)


def outcome(audited: Audited) -> AuditOutcome | None:
    """None: it could not run, and said why."""
    return audited.report.outcome if audited.report is not None else None


def convicted(audited: Audited) -> set[Kind]:
    assert audited.report is not None
    return {item.kind for item in audited.report.findings if item.severity is Severity.ERROR} - {Kind.UNPROVEN}


@pytest.mark.parametrize(("row", "count"), CASES, ids=named)
def test_each_loss_is_convicted_where_all_is_known(row: Row, count: int, tmp_path: Path) -> None:
    """And who knows more convicts what others do; who does not know what should be there calls nothing consistent."""
    scene = scene_of(row, count, tmp_path)
    outcomes = {known: outcome(audit(scene, known)) for known in Known}
    assert outcomes[Known.ALL] in (AuditOutcome.INCONSISTENT, None)
    if AuditOutcome.INCONSISTENT in (outcomes[Known.NOTHING], outcomes[Known.STATE]):
        assert outcomes[Known.WITNESS] is AuditOutcome.INCONSISTENT
    assert AuditOutcome.CONSISTENT not in (outcomes[Known.NOTHING], outcomes[Known.LIST])


@pytest.mark.parametrize(("row", "count"), LAWFUL_CASES, ids=named)
def test_what_is_lawful_is_not_called_a_loss(row: Row, count: int, tmp_path: Path) -> None:
    scene = scene_of(row, count, tmp_path)
    for known in Known:
        audited = audit(scene, known)
        assert outcome(audited) is not None, audited.refusal
        # Disks that contradict each other are told, where nothing says which is right.
        allowed = set() if known in WITH_STATE or known is Known.ZOOKEEPER else {Kind.TOPIC_ID_DIFFERS}
        assert convicted(audited) <= allowed, (known, convicted(audited))


@pytest.mark.parametrize(("name", "number", "count"), PLACES)
def test_a_batch_is_convicted_at_any_place(name: str, number: int, count: int, tmp_path: Path) -> None:
    assert outcome(audit(scene_at(name, number, count, tmp_path), Known.WITNESS)) is AuditOutcome.INCONSISTENT
