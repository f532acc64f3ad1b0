"""The child process that measures killers: which lines each test of some files executes, or each seed, and how long.

`python -m tests.mutation_score.measuring TEST-FILE... | SEED...` (`seed:1`, `disks:1`). Prints a KillerReach a line.
"""

import contextlib
import io
import sys
import time
from collections.abc import Generator

import coverage
import msgspec
import pytest

from tests.mutants.one_run import perform
from tests.mutants.patching import ROOT
from tests.mutation_score.population import FOLDERS
from tests.mutation_score.trial import pytest_arguments

UNSUITABLE = "not system and not spark and not docker"
"""They start processes, which would load the files as they are."""
SECONDS_PER_TEST_MAX = 900
"""The line trace triples a test's time, and the machine may be busy; a test that ends here is used for no mutant."""


class KillerReach(msgspec.Struct, kw_only=True):
    """A test or a seed, as it ran on the code as it is."""

    killer: str
    file: str
    """Of a test; `seed` or `disks` of a seed."""
    passed: bool = True
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    lines: dict[str, str] = {}
    """module: the executed lines, a bit each, in hexadecimal."""


class _Measuring:
    """Owns the line trace; as a pytest plugin, it measures each test."""

    def __init__(self) -> None:
        folders = [str(ROOT / folder) for folder in FOLDERS]
        self.coverage = coverage.Coverage(data_file=None, source=folders, config_file=False)
        self.reaches: dict[str, KillerReach] = {}

    @contextlib.contextmanager
    def measured(self, killer: str, file: str) -> Generator[KillerReach, None, None]:
        reach = self.reaches[killer] = KillerReach(killer=killer, file=file)
        self.coverage.switch_context(killer)
        started, cpu_started = time.monotonic(), time.process_time()
        try:
            yield reach
        finally:
            self.coverage.switch_context("")
            reach.seconds, reach.cpu_seconds = time.monotonic() - started, time.process_time() - cpu_started

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        with self.measured(item.nodeid, item.nodeid.partition("::")[0]):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:  # a skipped test kills nothing either
            self.reaches[report.nodeid].passed = False

    def add_lines(self) -> None:
        """Call it once, at the end."""
        self.coverage.stop()
        data = self.coverage.get_data()
        for path in data.measured_files():
            module = path.removeprefix(f"{ROOT}/").removesuffix(".py").replace("/", ".")
            masks: dict[str, int] = {}
            for line, killers in data.contexts_by_lineno(path).items():
                for killer in killers:
                    masks[killer] = masks.get(killer, 0) | 1 << line
            for killer, mask in masks.items():
                if killer in self.reaches:
                    self.reaches[killer].lines[module] = f"{mask:x}"


def main() -> None:
    names = sys.argv[1:]
    measuring = _Measuring()
    measuring.coverage.start()
    with contextlib.redirect_stdout(io.StringIO()):
        if names[0].endswith(".py"):
            arguments = [each for each in pytest_arguments() if each != "-x"]
            pytest.main(
                [*arguments, f"--timeout={SECONDS_PER_TEST_MAX}", "-m", UNSUITABLE, *names], plugins=[measuring]
            )
        for seed in names:
            if not seed.endswith(".py"):
                with measuring.measured(seed, seed.partition(":")[0]) as reach:
                    reach.passed = not perform(seed).findings
    measuring.add_lines()
    for reach in measuring.reaches.values():
        print(msgspec.json.encode(reach).decode(), flush=True)


if __name__ == "__main__":
    main()
