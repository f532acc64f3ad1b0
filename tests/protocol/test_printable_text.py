"""What a terminal shows of text that others wrote."""

import pytest

from minibroker.protocol.printable_text import printable, printable_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("übliche Zeichen, 語 und \\", "übliche Zeichen, 語 und \\"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\nb\rc\td\x7f", r"a\nb\rc\td\x7f"),
        ("\x9b31m", r"\x9b31m"),
        ("from right to left\u202e", r"from right to left\u202e"),
        (b"\xff".decode(errors="surrogateescape"), r"\udcff"),
    ],
)
def test_what_a_terminal_would_obey_or_could_not_show_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines_stay_lines() -> None:
    assert printable_lines("a\n\x1b[2J\n") == "a\n\\x1b[2J\n"
