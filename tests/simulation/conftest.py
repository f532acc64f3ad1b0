"""What the end of a test run says of the simulation."""

import pytest

from tests.simulation.fresh_seeds import SAID


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if SAID in config.stash:
        terminalreporter.write_line(config.stash[SAID])
