"""What a command says of a failed call that it did not expect."""

import sys

import pytest

from minibroker.command_line import EXIT_COULD_NOT
from tests.minibroker.test_command_line import leave


def test_a_wait_that_is_over_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was 'reading or writing failed: :'."""

    monkeypatch.setattr(sys, "argv", ["minibroker"])

    def late() -> None:
        raise TimeoutError

    assert leave(late) == EXIT_COULD_NOT
    assert capsys.readouterr().err.startswith("error: a step did not end in time: run it again")
