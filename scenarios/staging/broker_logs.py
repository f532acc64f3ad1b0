"""Log lines of simulated brokers while a scenario runs: the relevant ones, in few words.

Owns: which lines, and their short form. The broker is the simulated process that logs the line.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from minibroker.simulation.node import PROCESS

Arguments = tuple[Any, ...]


def letter(broker_id: int) -> str:
    """A is broker 1."""
    return chr(ord("A") + broker_id - 1)


def letters(broker_ids: object) -> str:
    assert isinstance(broker_ids, list)
    return " ".join(sorted(letter(broker_id) for broker_id in broker_ids))


LOG_LINES: dict[str, Callable[[Arguments], str]] = {
    "%s: truncated from %d to %d under leader epoch %s: %s": lambda a: f"cuts its log from {a[1]} to {a[2]}: {a[4]}",
    "%s: %s": lambda a: f"warns: {a[1]}",
    "%s: starts anew at offset %d, the leader's log start": lambda a: f"starts anew at offset {a[1]}",
    "%s: ISR %s -> %s (leader epoch %s, partition epoch %d)": lambda a: f"ISR {letters(a[1])} -> {letters(a[2])}",
    "%s: deleted up to offset %d by %s": lambda a: f"{a[2]} deletes up to offset {a[1]}",
    "broker %d: no answer from ZooKeeper for a session: fenced": lambda a: "no answer from ZooKeeper: leads nothing",
    "resigned as controller of epoch %d: %s": lambda a: f"is no longer controller: {a[1]}",
    "%s: ISR proposal refused: %s": lambda a: f"its ISR proposal is refused: {a[1]}",
}
"""By the program's own log template."""


class BrokerLogHandler(logging.Handler):
    """Passes the relevant lines on."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._on_line = on_line

    def emit(self, record: logging.LogRecord) -> None:
        put, process = LOG_LINES.get(str(record.msg)), PROCESS.get()
        if put is None or process is None or not isinstance(record.args, tuple):
            return
        name = process.name.rpartition("-")[2]
        self._on_line(f"{letter(int(name))}: {put(record.args)}")


@contextmanager
def listening(on_line: Callable[[str], None]) -> Iterator[None]:
    """Inside the block the brokers' log lines go to `on_line` only."""
    logger, listener = logging.getLogger("minibroker"), BrokerLogHandler(on_line)
    level, propagates = logger.level, logger.propagate
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(listener)
        logger.setLevel(level)
        logger.propagate = propagates
