"""docs/OPERATIONS.md lists the metrics that a broker has."""

from tests.docs.metrics_table import PAGE, renewed


def test_metrics_of_the_page_are_those_of_the_code() -> None:
    assert renewed(PAGE.read_text()) == PAGE.read_text(), "run: python -m tests.docs.metrics_table"
