"""`make invariants`: which invariants of docs/REPLICATION.md have a test, from the marker `invariant` on the tests."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROW = re.compile(r"^\| (I\d+) \| (.+?) \| .+? \|$", re.MULTILINE)
PAGE = Path(__file__).parents[1] / "docs" / "REPLICATION.md"
INVARIANTS: dict[str, str] = dict(ROW.findall(PAGE.read_text()))
"""Number and sentence, from the table in section 13 of the page."""


class Collector:
    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = defaultdict(list)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for name in {name for marker in item.iter_markers("invariant") for name in marker.args}:
                self.tests[name].append(item.nodeid)


def main() -> int:
    collector = Collector()
    with contextlib.redirect_stdout(io.StringIO()) as output:
        outcome = pytest.main(["--collect-only", "-qq", "tests"], plugins=[collector])
    if outcome not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(output.getvalue(), file=sys.stderr)
        return 1
    for name, text in INVARIANTS.items():
        tests = collector.tests[name]
        files = sorted({test.split("::")[0].removeprefix("tests/") for test in tests})
        print(f"{name:4} {len(tests) or '-':>4}  {text}" + (f"\n           {', '.join(files)}" if files else ""))
    without = [name for name in INVARIANTS if not collector.tests[name]]
    print(f"\n{len(INVARIANTS) - len(without)} of {len(INVARIANTS)} invariants have a test")
    if without:
        print(f"without: {' '.join(without)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
