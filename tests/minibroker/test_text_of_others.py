"""No terminal obeys what a broker or a file's name says: neither in an error, nor in a table."""

import json
import sys
from collections.abc import Callable

import click
import pytest

from minibroker.command_line import (
    CommandFailed,
    ProgressLine,
    note,
    print_error,
    print_json,
    print_table,
    run_command_line,
    warn,
)
from minibroker.observation.top_screen import screen

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\r"
SHOWN = r"\x1b]0;title\x07\x1b[2J\x9b31m\r"


def fail() -> None:
    @click.command()
    def failing() -> None:
        raise CommandFailed(HOSTILE)

    with pytest.raises(SystemExit):
        run_command_line(failing)


@pytest.mark.parametrize(
    "show",
    [
        fail,
        lambda: note(HOSTILE),
        lambda: warn(HOSTILE),
        lambda: print_error(HOSTILE, 1, as_json=False),
        lambda: print_table(("TOPIC", "ISR"), [(HOSTILE, [HOSTILE])]),
    ],
    ids=["error", "note", "warning", "one of several errors", "table"],
)
def test_what_a_command_prints_of_others_has_no_control_characters(
    show: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["minibroker"])
    show()
    printed = "".join(capsys.readouterr())
    assert SHOWN in printed
    assert all(character.isprintable() or character == "\n" for character in printed)


def test_a_progress_line_has_none_but_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = ProgressLine(after_s=0)
    progress.enabled = True
    monkeypatch.setattr(ProgressLine, "_width", staticmethod(lambda: 80))
    progress.show(HOSTILE)
    assert capsys.readouterr().err == f"\r\x1b[K{SHOWN}"


def test_the_screen_of_top_has_none() -> None:
    lines = screen(HOSTILE, [], [HOSTILE], 200, 10)
    assert [line.text for line in lines].count(SHOWN) == 2
    assert all(line.text.isprintable() for line in lines)


def test_json_has_none_either_and_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    text = f"{HOSTILE}\u202eü\U000e0001"
    print_json({"a": text})
    line = capsys.readouterr().out.removesuffix("\n")
    assert line.isprintable() and "ü" in line
    assert json.loads(line) == {"a": text}
