"""Runs a program once and returns its output. Owns: that the program ends, whatever happens to the case."""

import asyncio
from collections.abc import Sequence

from minibroker.bench.case import CaseFailed

COMPLAINT_CHARACTERS = 300


async def output_of(what: str, command: Sequence[str], within_s: float) -> bytes:
    """Its standard output. Raises CaseFailed unless it ends with 0 in time."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, start_new_session=True)
    try:
        output, errors = await asyncio.wait_for(process.communicate(), within_s)
    except TimeoutError:
        raise CaseFailed(f"{what} does not end within {within_s:g} s") from None
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if process.returncode:
        last = (errors or output).decode(errors="replace")[-COMPLAINT_CHARACTERS:].strip()
        raise CaseFailed(f"{what} ended with {process.returncode}: {last}")
    return output
