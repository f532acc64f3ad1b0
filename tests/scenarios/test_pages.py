"""docs/scenarios/ matches the scenarios. `make test REWRITE=1` rewrites it; review the diff."""

import os
from pathlib import Path

import pytest

from minibroker.scenarios.pages import FOLDER, page_names, page_text

PAGES = Path(__file__).parents[2] / FOLDER
CURE = "if the change was meant, run `python -m minibroker.scenarios.pages` or make test REWRITE=1"


@pytest.mark.parametrize("name", page_names())
def test_each_page_matches_its_scenario(name: str) -> None:
    text = page_text(name)
    if os.environ.get("REWRITE"):
        (PAGES / f"{name}.md").write_text(text)
    assert (PAGES / f"{name}.md").read_text() == text, f"{name}.md is stale: {CURE}"


def test_each_page_has_a_scenario() -> None:
    assert {path.stem for path in PAGES.iterdir()} == set(page_names())
