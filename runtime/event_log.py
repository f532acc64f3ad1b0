"""Typed events as lines of the log.

Owns: the subscriber that logs each event. Leaves to others: how a line looks (`json_lines`, or the sentence alone),
where the log goes (`log_file`), and the events (`protocol/events/cluster_events.py`).
"""

import logging

from minibroker.protocol.events.event_base import ClusterEvent

log = logging.getLogger("minibroker.events")


def log_event(event: object) -> None:
    """Subscriber: the event's sentence, at its level, made when a line is written. The record keeps the event itself
    for formatters."""
    if isinstance(event, ClusterEvent) and log.isEnabledFor(event.level):
        log.log(event.level, "%s", event, extra={"cluster_event": event})
