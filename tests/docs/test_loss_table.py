from minibroker.audit.checks.findings import Kind
from tests.docs.loss_table import PAGE, page_with_table


def test_page_names_each_kind_of_finding() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [kind for kind in Kind if f"`{kind}`" not in text] == []


def test_page_shows_the_audits_result_for_each_loss() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_with_table(), "run python -m tests.docs.loss_table"
