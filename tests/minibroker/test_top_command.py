"""`minibroker top` ends when the user types q."""

import asyncio
import os
import sys
import termios

import pytest

from minibroker.commands.top import _until_q


@pytest.mark.parametrize("key", [b"q", b"Q"])
def test_q_ends_it_and_the_terminal_is_as_before(monkeypatch: pytest.MonkeyPatch, key: bytes) -> None:
    """Once q did nothing, and only Ctrl-C ended it."""
    person, terminal = os.openpty()
    with os.fdopen(terminal, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        before = termios.tcgetattr(terminal)

        async def typed() -> None:
            watching = asyncio.create_task(_until_q(asyncio.Event().wait()))
            await asyncio.sleep(0)  # it listens now
            os.write(person, b"x" + key)
            await asyncio.wait_for(watching, 10)

        asyncio.run(typed())
        assert termios.tcgetattr(terminal) == before
    os.close(person)
