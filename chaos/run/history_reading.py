"""A history that lies in a file, read again and again without keeping it. Owns: the file, and the progress."""

from collections.abc import Callable, Iterator
from pathlib import Path

from minibroker.chaos.history.client_history import HistoryEvent
from minibroker.chaos.history.history_file import parse_history

TOLD_EVERY = 50_000


def read_history(file: Path, tell: Callable[[str], None]) -> Iterator[HistoryEvent]:
    """From its first event. Raises BadHistory."""
    with file.open("rb") as lines:
        for number, event in enumerate(parse_history(lines), start=1):
            if number % TOLD_EVERY == 0:
                tell(f"{number} events")
            yield event
