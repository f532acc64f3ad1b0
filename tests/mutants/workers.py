"""Runs one child process and reads what it prints.

Owns: the process, the deadline of its runs, and its end on Ctrl-C. Its caller decides how many run at a time.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Sequence

import msgspec

from tests.mutants.one_run import UNPATCHED, RunResult
from tests.mutants.patching import ROOT

PROCESSES = min(2, os.cpu_count() or 1)
SECONDS_PER_RUN_MAX = 180.0
"""A mutant may make a run spin; the slowest normal run takes a tenth of this."""
LINE_BYTES_MAX = 1 << 24


class ChildFailed(Exception):
    """The child ended without a result; the message is the end of its stderr."""


async def child_results(name: str | None, runs: Sequence[str], stops: bool = False) -> AsyncGenerator[RunResult, None]:
    """One child performs these runs with the mutant of that name (None: unpatched)."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.mutants.one_run", name or UNPATCHED),
        *(["--stop"] if stops else []),
        *runs,
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
        start_new_session=True,
    )
    assert child.stdout is not None and child.stderr is not None
    errors = asyncio.ensure_future(child.stderr.read())
    try:
        while line := await asyncio.wait_for(child.stdout.readline(), SECONDS_PER_RUN_MAX):
            yield msgspec.json.decode(line, type=RunResult)
        if await child.wait() != 0:
            raise ChildFailed(f"{name or 'unpatched'} {runs[0]}: {(await errors).decode()[-2000:]}")
    except TimeoutError:
        raise ChildFailed(f"{name or 'unpatched'}: no run ended in {SECONDS_PER_RUN_MAX:.0f} s") from None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
        errors.cancel()
