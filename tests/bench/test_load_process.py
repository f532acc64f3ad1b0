"""What a case receives from a load generator: its lines, and the error for one that ends early."""

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


async def test_a_very_long_report_is_read() -> None:
    async with generator_that_runs("import json; print(json.dumps({'report': {'of': [1] * 100_000}}))") as load:
        assert len((await load.report())["of"]) == 100_000


async def test_error_of_a_generator_that_ends_before_its_report_is_quoted() -> None:
    async with generator_that_runs("raise SystemExit('no room')") as load:
        with pytest.raises(CaseFailed, match="the test generator ended with 1: no room"):
            await load.report()


async def test_error_of_a_generator_that_ends_within_its_report_is_quoted() -> None:
    program = "import sys; sys.stdout.write('{\"report\": {\"of\": [1, 2'); sys.exit('no room')"
    async with generator_that_runs(program) as load:
        with pytest.raises(CaseFailed, match="the test generator ended with 1: no room"):
            await load.report()
