"""The output of a check whose reader ends early (`| head`, `| grep -q`): the check goes on to its verdict.

Other commands end with their reader, and with 0. A check would then say that all is well, whatever it was about to
find. Not for a command that asks a question: what it asks about must have been read.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class _UnreadFile(io.FileIO):
    """Once its reader has ended, all that is written is dropped."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return memoryview(data).nbytes


@contextmanager
def read_or_not() -> Iterator[None]:
    """Within it, a reader of stdout or stderr (`2>&1 | head`) that ends is no error."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_unbroken(stream) for stream in before)
    own = [stream for stream in (sys.stdout, sys.stderr) if stream not in before]
    try:
        yield
        for stream in own:
            stream.flush()
    finally:
        sys.stdout, sys.stderr = before


def _unbroken(stream: TextIO) -> TextIO:
    """The same output, without the error."""
    try:
        number = stream.fileno()
        stream.flush()
    except (OSError, ValueError):  # a test's stdout is no file; a pipe without a reader is found below
        return stream
    buffer = io.BufferedWriter(_UnreadFile(number, "wb", closefd=False))
    by_line = stream.isatty() or stream is sys.stderr
    return io.TextIOWrapper(buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=by_line)
