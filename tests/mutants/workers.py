"""Runs one child process and reads what it prints.

Owns: the process, the deadline of its runs, and its end on Ctrl-C. Its caller decides how many run at a time.
"""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from functools import cache

import msgspec

from tests.mutants.one_run import UNPATCHED, RunResult
from tests.mutants.patching import ROOT

PROCESSES = min(2, os.cpu_count() or 1)
SECONDS_PER_RUN_MAX = 180.0
"""A mutant may make a run spin; the slowest normal run takes a tenth of this."""
LINE_BYTES_MAX = 1 << 24


@cache
def compiled_modules() -> "tempfile.TemporaryDirectory[str]":
    """Where children keep what they have compiled, until this process ends: a child that compiles all modules takes a
    CPU second longer. A mutant's own module is never kept."""
    return tempfile.TemporaryDirectory(prefix="minibroker-compiled-")


class ChildFailed(Exception):
    """The child ended without a result; the message is the end of its stderr."""

    def __init__(self, text: str, exit_code: int = 0) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        """Negative: a signal."""


async def child_lines(
    *arguments: str, given: bytes = b"", seconds_max: float = SECONDS_PER_RUN_MAX
) -> AsyncGenerator[bytes, None]:
    """The lines that `python ARGUMENTS` prints; it reads `given`. Raises ChildFailed if it fails, TimeoutError if it
    prints nothing for that long. No process of its group outlives this."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": compiled_modules().name},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
        start_new_session=True,
    )
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    errors = asyncio.ensure_future(child.stderr.read())
    try:
        with contextlib.suppress(ConnectionError):  # it ended before it read; its exit code says why
            child.stdin.write(given)
            child.stdin.write_eof()
            await child.stdin.drain()
        while line := await asyncio.wait_for(child.stdout.readline(), seconds_max):
            yield line
        if await child.wait() != 0:
            text = (await errors).decode(errors="replace")[-2000:]
            raise ChildFailed(f"exit code {child.returncode}: {text}", child.returncode or 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
        errors.cancel()


async def child_results(name: str | None, runs: Sequence[str], stops: bool = False) -> AsyncGenerator[RunResult, None]:
    """One child performs these runs with the mutant of that name (None: unpatched)."""
    mutant = name or "unpatched"
    arguments = ("-m", "tests.mutants.one_run", name or UNPATCHED, *(["--stop"] if stops else []), *runs)
    try:
        async with contextlib.aclosing(child_lines(*arguments)) as lines:
            async for line in lines:
                yield msgspec.json.decode(line, type=RunResult)
    except ChildFailed as error:
        raise ChildFailed(f"{mutant} {runs[0]}: {error}") from None
    except TimeoutError:
        raise ChildFailed(f"{mutant}: no run ended in {SECONDS_PER_RUN_MAX:.0f} s") from None
