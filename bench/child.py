"""A program that a case runs once and whose output it reads. Owns: that it ends, whatever becomes of the case."""

import asyncio
from collections.abc import Sequence

from minibroker.bench.case import CaseFailed

COMPLAINT_CHARACTERS = 300


async def output_of(what: str, words: Sequence[str], within_s: float) -> bytes:
    """What it prints. Raises CaseFailed unless it ends with 0 in time."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe, start_new_session=True)
    try:
        said, complaint = await asyncio.wait_for(process.communicate(), within_s)
    except TimeoutError:
        raise CaseFailed(f"{what} does not end within {within_s:g} s") from None
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if process.returncode:
        last = (complaint or said).decode(errors="replace")[-COMPLAINT_CHARACTERS:].strip()
        raise CaseFailed(f"{what} ended with {process.returncode}: {last}")
    return said
