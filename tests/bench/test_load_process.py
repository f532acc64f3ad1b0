"""What a case hears of a load generator: its lines, and what is said of one that dies."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from minibroker.bench.case import CaseFailed
from minibroker.bench.load_process import LINE_BYTES_MAX, LoadProcess


@asynccontextmanager
async def generator_that_runs(program: str) -> AsyncIterator[LoadProcess]:
    pipe = asyncio.subprocess.PIPE
    words = [sys.executable, "-c", program]
    process = await asyncio.create_subprocess_exec(
        *words, stdin=pipe, stdout=pipe, stderr=pipe, limit=LINE_BYTES_MAX, start_new_session=True
    )
    found = LoadProcess("test", process)
    try:
        yield found
    finally:
        await found.stop()


async def test_its_report_is_read_however_long_it_is() -> None:
    async with generator_that_runs("import json; print(json.dumps({'report': {'of': [1] * 100_000}}))") as load:
        assert len((await load.report())["of"]) == 100_000


async def test_one_that_dies_before_its_report_is_quoted() -> None:
    async with generator_that_runs("raise SystemExit('no room')") as load:
        with pytest.raises(CaseFailed, match="the test generator ended with 1: no room"):
            await load.report()


async def test_one_that_dies_within_its_report_is_quoted_too() -> None:
    program = "import sys; sys.stdout.write('{\"report\": {\"of\": [1, 2'); sys.exit('no room')"
    async with generator_that_runs(program) as load:
        with pytest.raises(CaseFailed, match="the test generator ended with 1: no room"):
            await load.report()
