"""docs/EVENTS.md, from protocol/events/: `python -m tests.docs.events_page` writes it."""

from __future__ import annotations

import logging
import sys
import typing
from pathlib import Path

import msgspec

from minibroker.protocol.events.cluster_events import EVENTS
from minibroker.protocol.events.event_base import ClusterEvent

PAGE = Path(__file__).parents[2] / "docs" / "EVENTS.md"
HEAD = """# Events

What brokers and controllers report of themselves, as an interface. Each event has a name, fields, a level and a
sentence. The same events are

- the lines of a broker's log: the sentence (`broker --log-format text`, the default), or one JSON object per line
  (`broker --log-format json`);
- what `minibroker events` prints: it follows all brokers of a cluster, with filters by kind, topic and broker, and
  `--json`. A broker keeps its last 2,000 events for that, since its start, or the last megabyte of text if they are
  longer. A long event has only its short fields and the beginning of its sentence.
  Characters that a terminal would obey are escaped. A broker that does not answer, or sends what is no event, is named
  on stderr. So is one that reported more at once than it keeps (thousands of its partitions got other leaders), with
  the number of events that only its log has; `minibroker top` says that, too.

`minibroker events` asks all brokers a few times per second, and prints what they answer by their times, which are
those of the brokers' clocks. It does not wait for a broker that is slow, paused or cut off: its earlier events are
printed when it answers. `--broker N` shows what broker N reported, and what others reported of it: events with N in
the fields `broker`, `brokers`, `confirmer`, `leader` or `leader_before`, and changes by which it joins or leaves an
ISR.

The last events of a broker that ends are in its log alone: after a clean stop, `handover_begun` and `broker_stopped`
are not among what `minibroker events` prints, because the broker has ended before it is asked again. The other brokers
tell that it left (`isr_changed`, `broker_left`).

A JSON line has `time` (UTC) and `at_ms` (the same in milliseconds since 1970), `level`, `reported_by` (the broker),
`event` (the name below), the fields of the event, and `text` (the sentence). Lines of the log that are no event
of this list have the event `log` and a field `logger`. Names and fields stay; new ones may be added.

An event tells of a change: of a replica, a log, a log directory, a broker's registration or session, its settings, the
controller and what it decides; or of something that is wrong and may need an operator. Other lines of the log are
diagnostics and no events: an attempt that failed and is made again (a connection, an order, a write to ZooKeeper);
warnings about settings and limits; refused connections; the trail of administration (logger
`minibroker.administration`, [SECURITY.md](SECURITY.md)); and bugs.

What a start finds: `file_not_used` for each file beside a log or beside all logs that it does without, and what it does
instead; `log_scanned` for each log that was read, with the bytes of a torn tail that were cut; `replica_damaged` for a
log that must not be used; `log_missing`, `directory_id_missing` and `logs_doubted` for what elections will distrust.

This page is written by `python -m tests.docs.events_page`, from `protocol/events/`.

| event | level | meaning | fields |
|---|---|---|---|
"""


def level_of(kind: type[ClusterEvent]) -> str:
    if kind.level is not ClusterEvent.level:
        return "INFO or WARNING"
    return logging.getLevelName(kind.LEVEL)


def made() -> str:
    rows = []
    for name, kind in sorted(EVENTS.items()):
        hints = typing.get_type_hints(kind)
        fields = [field.name for field in msgspec.structs.fields(kind)]
        shown = ", ".join(f"`{field}` {_type_name(hints[field])}" for field in fields) or "-"
        assert kind.__doc__ is not None, name
        rows.append(f"| `{name}` | {level_of(kind)} | {' '.join(kind.__doc__.split())} | {shown} |")
    return HEAD + "\n".join([*rows, ""])


def _type_name(hint: object) -> str:
    return str(hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else hint).replace("|", "or")


def main() -> None:
    PAGE.write_text(made())
    sys.stdout.write(f"{PAGE} is up to date\n")


if __name__ == "__main__":
    main()
