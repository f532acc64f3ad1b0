"""What the clients of a run know: records sent, acknowledged, surely failed, unknown, read.

Owns: the history. Leaves to others: checking it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from minibroker.chaos.history.anomalies import check_history
from minibroker.chaos.history.client_history import EventLog, Polled, Sent
from minibroker.chaos.history.promise import Promise
from minibroker.client.consumer.records import Record
from minibroker.client.errors import MinibrokerError
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.finding import CheckerFinding
from minibroker.simulation.swarm.expected_errors import is_expected
from minibroker.simulation.swarm.loads.changed_settings import ChangedSettings
from minibroker.simulation.swarm.loads.time_lookups import TimeLookups
from minibroker.simulation.swarm.loads.written_records import WrittenRecords, name_of_record

ERRORS_MAX = 50
ERROR_CHARACTERS_MAX = 200


class History:
    """What clients know."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        """`now` returns the virtual seconds since the start."""
        self._now = now
        self.acked: dict[tuple[TopicPartition, int], bytes | None] = {}
        self.weakly_acked = 0
        self.surely_failed: set[bytes] = set()
        self.unknown = 0
        self.read: dict[tuple[TopicPartition, int], bytes | None] = {}
        self.findings: list[CheckerFinding] = []
        self.errors: dict[str, int] = {}
        self.events = EventLog()
        self.open_sends: set[int] = set()
        """Operations of sends without an outcome so far."""
        self.written = WrittenRecords()
        """What loads wrote, in every field."""
        self.timestamps_ms: dict[tuple[TopicPartition, int], int] = {}
        """Of each record that a reader saw."""
        self.settings = ChangedSettings()
        """What was changed during the run."""
        self.lookups = TimeLookups()
        """What consumers asked by time, and the answers."""
        self.idempotent: set[str] = set()
        """Idempotent producers of loads, by their name in the history."""
        self.not_idempotent: set[str] = set()
        """The others."""

    def note_error(self, client: str, error: Exception) -> None:
        """A call of a client ended with this error. One that may never come within the promise is a finding."""
        if not is_expected(error):
            self.find("client: errors", f"{client} met {type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX])
        self.count_error(client, error)

    def count_error(self, client: str, error: Exception) -> None:
        """The same where the story makes errors that may not come otherwise."""
        key = f"{client}: {type(error).__name__}"
        if key in self.errors or len(self.errors) < ERRORS_MAX:
            self.errors[key] = self.errors.get(key, 0) + 1

    def find(self, invariant: str, text: str, partition: TopicPartition | None = None, *facts: str) -> None:
        self.findings.append(
            CheckerFinding(invariant=invariant, text=text, at_seconds=self._now(), partition=partition, facts=facts)
        )

    # ------------------------------------------------------------------------------------------------------- events
    def sends(self, process: str, partition: TopicPartition, value: bytes) -> int:
        """Returns the operation that its completion has to name."""
        operation = self.events.invoke(self._now(), process, "send", (Sent(str(partition), name_of(value)),))
        self.open_sends.add(operation)
        return operation

    def begins_to_send(self, process: str) -> int:
        """A client calls `send`, and does not know yet which partition the record goes to. Returns the operation."""
        return self.events.invoke(self._now(), process, "send")

    def takes(self, operation: int, partition: TopicPartition, name: str) -> None:
        """The producer took that record for this partition."""
        self.events.specify(operation, (Sent(str(partition), name),))
        self.open_sends.add(operation)

    def wrote(self, operation: int, offset: int | None, leader_epoch: int | None, is_promised: bool) -> None:
        """The producer got an acknowledgement; without acks=all it promises nothing."""
        self.open_sends.discard(operation)
        sent = tuple(Sent(each.key, each.value, offset) for each in self.events.events[operation].sent)
        kind: Literal["ok", "info"] = "ok" if is_promised else "info"
        self.events.complete(self._now(), operation, kind, sent=sent, leader_epoch=leader_epoch)

    def promised(self, partition: TopicPartition, offset: int | None, value: bytes | None) -> None:
        """I21: acks=all was acknowledged at this offset."""
        if offset is None:
            self.find("I21", f"{value!r:.60} is acknowledged without an offset: nothing proves it", partition)
            return
        known = self.acked.setdefault((partition, offset), value)
        if known != value:
            facts = (f"{offset} was acknowledged for {known!r:.60}", f"and for {value!r:.60}")
            self.find("I21", "two records acknowledged at one offset", partition, *facts)

    def reads(self, partition: TopicPartition, offset: int, value: bytes | None) -> None:
        """I22: a reader saw this value; every other one sees it, too."""
        known = self.read.setdefault((partition, offset), value)
        if known != value:
            self.find(
                "I22",
                f"offset {offset} changed",
                partition,
                f"a reader saw {known!r:.60}",
                f"a later one {value!r:.60}",
            )

    def moves(self, process: str) -> None:
        """A consumer has sought: its next records need not follow those before."""
        self.events.complete(self._now(), self.events.invoke(self._now(), process, "assign"), "ok")

    def failed(self, operation: int, error: MinibrokerError) -> None:
        self.open_sends.discard(operation)
        kind: Literal["info", "fail"] = "info" if error.maybe_written else "fail"
        self.events.complete(
            self._now(), operation, kind, error=f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]
        )

    def polls(self, process: str, found: Mapping[TopicPartition, Sequence[Record]]) -> None:
        """A poll that returned records."""
        records = [(partition, record) for partition in sorted(found) for record in found[partition]]
        names = [name_of_record(record) for _, record in records]
        polled = tuple(
            Polled(str(partition), name, record.offset, record.leader_epoch)
            for name, (partition, record) in zip(names, records, strict=True)
        )
        for name, (partition, record) in zip(names, records, strict=True):
            self.timestamps_ms[partition, record.offset] = record.timestamp_ms
            for difference in self.written.differences(name, record):
                self.find("I22", f"{name} at {record.offset} is not what was written", partition, difference)
        if polled:
            operation = self.events.invoke(self._now(), process, "poll")
            self.events.complete(self._now(), operation, "ok", polled=polled)

    def check_events(self, promise: Promise) -> None:
        """Find the anomalies in what clients did and saw."""
        for found in check_history(self.events.events, promise):
            self.findings.append(
                CheckerFinding(invariant=found.name, text=f"{found.key} {found.text}", facts=found.facts)
            )


def name_of(value: bytes) -> str:
    """Values are unique by their beginning; the rest is padding."""
    return value.rstrip(b".").decode()
