"""What happens in a cluster, one line each for an onlooker: `top` and the demo tell it.

Owns: which events of brokers are told, and what no event tells: a broker that does not answer, or reports no events.
Leaves to others: asking (`event_stream`, `cluster_view`), and printing.
"""

import asyncio
import contextlib
import time
from collections.abc import Collection, Sequence

import msgspec

from minibroker.observation.broker_queries import ASK_TIMEOUT_S, BrokerQueries, NoAnswer
from minibroker.observation.cluster_view import ClusterView, view_cluster
from minibroker.observation.event_stream import BrokerEvent, EventStream

KINDS = {
    "leadership_changed": "election",
    "isr_changed": "isr",
    "replica_truncated": "truncation",
    "replica_reset": "truncation",
    "controller_elected": "controller",
    "broker_registered": "broker-up",
    "broker_failure_confirmed": "broker-down",
    "unresponsive_broker_replaced": "broker-down",
    "broker_left": "broker-down",
    "leadership_fenced": "fenced",
    "leadership_unfenced": "fenced",
    "replica_damaged": "damage",
    "replica_repaired": "damage",
    "log_directory_failed": "disk",
    "log_directory_has_room": "disk",
    "topic_created": "topic",
    "topic_deleted": "topic",
}
"""The events that are told, and their kinds. `minibroker events` shows the others, too."""
OWN_STATE = {"truncation", "controller", "fenced", "damage", "disk"}
"""Kinds that concern the broker that reports them, which their sentence does not name."""


class ClusterChange(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened: a kind for programs and a sentence for people."""

    at_ms: int
    kind: str
    """One of `KINDS`, or 'silent', 'answers', 'no-events' (by what the broker answers here)."""
    what: str
    partition: str | None = None
    broker: int | None = None


def told_by(event: BrokerEvent, topics: Collection[str] | None = None) -> ClusterChange | None:
    """None for an event that is not told, or of another topic than these."""
    fields = event.fields
    kind = KINDS.get(fields["event"])
    if kind is None or not _is_change(kind, fields):
        return None
    if topics is not None and fields.get("topic", next(iter(topics), None)) not in topics:
        return None
    prefix = f"broker {event.reported_by}: " if kind in OWN_STATE else ""
    partition = f"{fields['topic']}-{fields['partition']}" if "topic" in fields and "partition" in fields else None
    broker = fields.get("broker", fields.get("leader", event.reported_by))
    return ClusterChange(
        at_ms=event.at_ms, kind=kind, what=f"{prefix}{fields['text']}", partition=partition, broker=broker
    )


def _is_change(kind: str, fields: dict[str, object]) -> bool:
    """A controller also writes new partitions and other in-sync sets, and a follower may find nothing to cut."""
    if kind == "election":
        return bool(fields.get("is_election") or fields.get("is_bad"))
    return "end_before" not in fields or fields["end_before"] != fields.get("end_after")


def changes_of_answers(before: ClusterView | None, after: ClusterView) -> list[ClusterChange]:
    """Brokers that stopped answering, or answer again."""
    if before is None:
        return []
    old, new = (
        {broker.broker_id for broker in view.brokers if broker.description is not None} for view in (before, after)
    )
    at_ms = round(after.taken_at * 1000)
    silent = [
        ClusterChange(at_ms=at_ms, kind="silent", what=f"broker {each} does not answer", broker=each)
        for each in sorted(old - new)
    ]
    return silent + [
        ClusterChange(at_ms=at_ms, kind="answers", what=f"broker {each} answers", broker=each)
        for each in sorted(new - old)
    ]


class ClusterWatch:
    """Looks at a cluster again and again. Close it, or use it with `async with`."""

    def __init__(self, client_id: str, servers: str) -> None:
        self._queries = BrokerQueries(client_id)
        self._event_queries = BrokerQueries(f"{client_id}-events")
        """Connections of their own: a look takes as long as one silent broker, not as two."""
        self._servers = servers
        self._stream = EventStream(self._event_queries, servers)
        self._untold: list[BrokerEvent] = []
        self._before: ClusterView | None = None
        self._mute: set[int] = set()

    async def look(
        self, topics: Sequence[str] | None = None, timeout_s: float = ASK_TIMEOUT_S
    ) -> tuple[ClusterView, list[ClusterChange]]:
        """The state now, and what happened since the last look, oldest first. Raises NoAnswer if no broker answers."""
        asked = None if topics is None else list(topics)
        looking = view_cluster(self._queries, self._servers, asked, timeout_s)
        view, polled = await asyncio.gather(looking, self._poll(timeout_s), return_exceptions=True)
        for outcome in (view, polled):
            if isinstance(outcome, BaseException):
                raise outcome
        assert isinstance(view, ClusterView)
        told = [told_by(event, topics) for event in self._untold] if self._before is not None else []
        changes = [*(each for each in told if each is not None), *changes_of_answers(self._before, view)]
        self._untold, self._before = [], view
        known = self._servers.split(",")  # the brokers given first may fail while we watch
        self._servers = ",".join([*known, *(each.server for each in view.brokers if each.server not in known)])
        return view, sorted([*changes, *self._new_mutes()], key=lambda change: change.at_ms)

    async def _poll(self, timeout_s: float) -> None:
        with contextlib.suppress(NoAnswer):
            self._untold += await self._stream.poll(timeout_s)

    def _new_mutes(self) -> list[ClusterChange]:
        now_ms, refusals = round(time.time() * 1000), self._stream.refusals
        new = {broker: why for broker, why in sorted(refusals.items()) if broker not in self._mute}
        self._mute = set(refusals)
        told = [(each, f"broker {each} reports no events: {why}") for each, why in new.items()]
        told += self._stream.take_missed().items()
        return [ClusterChange(at_ms=now_ms, kind="no-events", what=what, broker=each) for each, what in told]

    async def close(self) -> None:
        self._stream.end()
        await self._queries.close()
        await self._event_queries.close()

    async def __aenter__(self) -> "ClusterWatch":
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.close()
