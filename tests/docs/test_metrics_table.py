"""docs/OPERATIONS.md lists the metrics that a broker has."""

import re

from tests.docs.metrics_table import PAGE, renewed


def test_metrics_of_the_page_are_those_of_the_code() -> None:
    assert renewed(PAGE.read_text()) == PAGE.read_text(), "run: python -m tests.docs.metrics_table"


def test_metrics_to_monitor_exist() -> None:
    monitored = set(re.findall(r"`(minibroker_\w+)`", (PAGE.parent / "DEPLOYMENT.md").read_text()))
    assert monitored
    assert not {name for name in monitored if f"`{name}" not in PAGE.read_text()}
