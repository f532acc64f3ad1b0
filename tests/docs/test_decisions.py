"""The index of decisions names each one, and each one says whether it holds."""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))


def test_the_index_lists_each_decision_once_and_in_order() -> None:
    listed = re.findall(r"^- \[(\d+)\]\(([^)]+)\) \S", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert listed == [(page.name[:4], page.name) for page in PAGES]


def test_each_decision_has_a_status_with_a_date() -> None:
    without = [
        page.name for page in PAGES if not re.search(r"^Status: .*\d{4}-\d\d-\d\d", page.read_text(), re.MULTILINE)
    ]
    assert without == []
