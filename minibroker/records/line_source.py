"""Records out of a file or a stream: a record is the bytes between b'\\n'.

Owns: splitting bytes into records (empty lines and CR are kept; a last line without its newline is a record, an empty
rest is none) and reading a stream without ever blocking the event loop. Leaves to others: the use of the records.
"""

import asyncio
import os
import stat
from collections.abc import AsyncIterator

CHUNK_BYTES = 64 * 1024
"""Small enough that sending its records blocks the event loop for a few milliseconds only."""

LINE_BYTES_MAX = 64 * 1024 * 1024
"""Of a line: the largest record that can be sent takes 48 MiB where JSON escapes each byte of it."""


class LineTooLong(ValueError):
    """It would fill the memory; the message is a part of a sentence."""


class LineSplitter:
    """Splits chunks into whole records, and keeps the beginning of the next one."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self.rest_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The records that this chunk completes."""
        lines = chunk.split(b"\n")
        if len(lines) == 1:
            self._rest.append(chunk)
            self.rest_bytes += len(chunk)
            return []
        if self._rest:
            lines[0] = b"".join(self._rest) + lines[0]
        last = lines.pop()
        self._rest = [last] if last else []
        self.rest_bytes = len(last)
        return lines

    def finish(self) -> list[bytes]:
        """What is left when the input ends."""
        rest, self._rest = b"".join(self._rest), []
        return [rest] if rest else []


async def read_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """The records of an open file, pipe or terminal, some at a time, until it ends. Raises LineTooLong."""
    splitter = LineSplitter()
    wait = not stat.S_ISREG(os.fstat(descriptor).st_mode)
    while True:
        if wait:
            await _readable(descriptor)
        else:
            await asyncio.sleep(0)
        chunk = os.read(descriptor, CHUNK_BYTES)
        if not chunk:
            break
        lines = splitter.feed(chunk)
        if lines:
            yield lines
        elif splitter.rest_bytes > LINE_BYTES_MAX:
            raise LineTooLong(f"is longer than {LINE_BYTES_MAX} bytes: a record ends with a newline")
    rest = splitter.finish()
    if rest:
        yield rest


async def _readable(descriptor: int) -> None:
    """Wait until a read returns at once; without a thread, because Ctrl-C would wait for one that hangs in a read."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(descriptor, _wake, ready)
    except (PermissionError, OSError):
        return  # /dev/null and the like: always ready
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


def _wake(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


def split_key(line: bytes, delimiter: bytes) -> tuple[bytes | None, bytes]:
    """Key and value around the first delimiter; a line without it has no key."""
    key, found, value = line.partition(delimiter)
    return (key, value) if found else (None, line)
