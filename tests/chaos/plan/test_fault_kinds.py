"""Every kind of fault can be done, and is described."""

from __future__ import annotations

from pathlib import Path

from minibroker.chaos.plan.fault_kinds import BACKENDS, BY_NAME, KINDS
from minibroker.chaos.run.fault_actions import ACTIONS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "CHAOS.md"


def test_every_kind_has_an_action() -> None:
    assert set(ACTIONS) == set(BY_NAME)
    assert len(BY_NAME) == len(KINDS)


def test_the_page_says_where_each_kind_is_possible() -> None:
    """A row names kinds, then says for each back end `no` or how."""
    said: dict[str, tuple[bool, ...]] = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in filter(BY_NAME.__contains__, (word.strip("` ") for word in cells[0].split(","))):
            if len(cells) == len(BACKENDS) + 1:
                said[name] = tuple(cell != "no" for cell in cells[1:])
    assert said == {kind.name: tuple(backend in kind.backends for backend in BACKENDS) for kind in KINDS}
