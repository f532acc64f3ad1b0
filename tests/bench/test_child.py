"""A case's own programs: their output, and the error for one that fails or hangs."""

import sys

import pytest

from minibroker.bench.case import CaseFailed
from minibroker.bench.child import output_of


async def test_output_of_a_program_is_returned() -> None:
    assert await output_of("it", [sys.executable, "-c", "print(3)"], 30.0) == b"3\n"


async def test_error_of_a_failing_program_is_quoted() -> None:
    with pytest.raises(CaseFailed, match="it ended with 1: no room"):
        await output_of("it", [sys.executable, "-c", "raise SystemExit('no room')"], 30.0)


async def test_a_hanging_program_is_terminated() -> None:
    with pytest.raises(CaseFailed, match="it does not end within"):
        await output_of("it", [sys.executable, "-c", "import signal; signal.pause()"], 0.2)
