"""A history that lies in a file, read again and again without keeping it. Owns: the file, and the progress."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from minibroker.audit.reading.regular_files import open_regular
from minibroker.chaos.history.client_history import HistoryEvent
from minibroker.chaos.history.history_file import FORMAT, BadHistory, parse_history

TOLD_EVERY = 50_000
LINE_BYTES_MAX = 64 * 1024 * 1024
"""Of a poll with half a million records; a longer line is no event, but some other file."""


def read_history(file: Path, tell: Callable[[str], None]) -> Iterator[HistoryEvent]:
    """From its first event. Raises BadHistory, and OSError: a pipe could not be read again."""
    with open(open_regular(str(file)), "rb") as lines:
        for number, event in enumerate(parse_history(_lines(lines)), start=1):
            if number % TOLD_EVERY == 0:
                tell(f"{number} events")
            yield event


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Raises BadHistory instead of reading a file without newlines into the memory."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX):
        number += 1
        if len(line) == LINE_BYTES_MAX:
            raise BadHistory(f"line {number} is longer than {LINE_BYTES_MAX} bytes: {FORMAT}")
        yield line
