"""What brokers report while a scenario runs, in few words: those of their events that matter to it.

Owns: which events, and how each is told. Leaves to others: where they come from, the observers of a simulated world or
the JSON logs of real brokers (`live/event_log.py`).
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from minibroker.protocol.events.cluster_events import as_json_fields
from minibroker.protocol.events.event_base import ClusterEvent
from minibroker.runtime.observer import Observers
from minibroker.simulation.world.node import PROCESS

Fields = dict[str, Any]


def letter(broker_id: int) -> str:
    """A is broker 1."""
    return chr(ord("A") + broker_id - 1)


def letters(broker_ids: list[int]) -> str:
    return " ".join(sorted(letter(broker_id) for broker_id in broker_ids))


PHRASES: dict[str, Callable[[Fields], str]] = {
    "replica_truncated": lambda e: f"cuts its log from {e['end_before']} to {e['end_after']}: {e['reason']}",
    "replica_warned": lambda e: f"warns: {e['message']}",
    "replica_reset": lambda e: f"resets its log to offset {e['offset']}",
    "isr_changed": lambda e: f"ISR {letters(e['before'])} -> {letters(e['after'])}",
    "segments_deleted": lambda e: f"{e['reason']} deletes up to offset {e['offset']}",
    "leadership_fenced": lambda e: "no answer from ZooKeeper: leads nothing",
    "controller_resigned": lambda e: f"is no longer controller: {e['reason']}",
    "isr_proposal_refused": lambda e: f"its ISR proposal is refused: {e['error']}",
}


def phrase(fields: Fields) -> str | None:
    """None: the event does not matter to a scenario."""
    put = PHRASES.get(fields["event"])
    return None if put is None else put(fields)


@contextmanager
def listening(observers: Observers, on_phrase: Callable[[str], None]) -> Iterator[None]:
    """Until the block ends, give each phrase with the letter of its broker to `on_phrase`. Log lines go nowhere."""

    def observe(event: object) -> None:
        process = PROCESS.get()
        if process is None or not isinstance(event, ClusterEvent):
            return
        told = phrase(as_json_fields(event))
        if told is not None:
            on_phrase(f"{letter(int(process.name.rpartition('-')[2]))}: {told}")

    logger, silent = logging.getLogger("minibroker"), logging.NullHandler()
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(silent)
    try:
        with observers.subscribed(observe):
            yield
    finally:
        logger.removeHandler(silent)
        logger.propagate = propagates
