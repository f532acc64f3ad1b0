"""Rules for all tests: quick ones first, known invariants only, and every error of the event loop fails a test."""

from __future__ import annotations

import gc
import inspect
import itertools
import logging
import os
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from tests.invariant_coverage import INVARIANTS

pytest_plugins = ["tests.zookeeper_fixture"]

# Deadlines per example measure the machine, not the code. `make fuzz` takes the second profile.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=2_000)
hypothesis.settings.load_profile("house")

SWARM = "tests/simulation/test_swarm.py::"
"""Runs fresh seeds, which the end of the output names."""

# Slower kinds are later in this list, so that failures show early.
SLOWNESS = ["slow", "system", "spark", "docker"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers("invariant"):
            unknown = [name for name in marker.args if name not in INVARIANTS]
            if unknown or not marker.args:
                raise pytest.UsageError(f"{item.nodeid}: invariant({unknown}) is not one of I1 to I{len(INVARIANTS)}")
    items.sort(key=_slowness)  # stable: files keep their order otherwise


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # the collection after each asyncio test does not search imported modules again


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Workers send reports as UTF-8, and some tests log names that are none."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode("utf-8")) for name, text in report.sections
    ]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Here and not beside the swarm, because with workers only the main process has a terminal."""
    reports = itertools.chain.from_iterable(terminalreporter.stats.values())
    if any(getattr(report, "nodeid", "").startswith(SWARM) for report in reports) and not os.environ.get("SEEDS"):
        from tests.simulation.fresh_seeds import fresh_seeds  # imports the whole simulator

        terminalreporter.write_line(fresh_seeds()[1])


def _slowness(item: pytest.Item) -> int:
    return max((rank for rank, name in enumerate(SLOWNESS, start=1) if item.get_closest_marker(name)), default=0)


class LoopErrors(logging.Handler):
    """Every event loop, including uvloop's, reports unhandled errors to the logger `asyncio`."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(logging.Formatter().format(record))


@pytest.fixture(autouse=True)
def no_unhandled_loop_errors(request: pytest.FixtureRequest) -> Iterator[None]:
    errors = LoopErrors()
    logger = logging.getLogger("asyncio")
    logger.addHandler(errors)
    try:
        yield
        if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
            gc.collect()  # a task with an unretrieved exception reports it when it is collected
    finally:
        logger.removeHandler(errors)
    if errors.seen and not request.node.get_closest_marker("expects_loop_errors"):
        pytest.fail("the event loop reported unhandled errors:\n" + "\n".join(errors.seen), pytrace=False)
