"""What a run looks like from outside: one line for each change of a replica's state, each fault, each finding.

Owns: the lines, and the shortest history of a partition that leads to a finding. Leaves to others: checking it.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from minibroker.broker.replicas.observations import ObservedReplica
from minibroker.broker.replication import events as ev
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.checker import ReplicaListener
from minibroker.simulation.checks.finding import CheckerFinding

HISTORY_LINES_MAX = 60
HEADER = f"{'time':>9} {'broker':>6} {'partition':9} {'epoch':>5} {'LEO':>6} {'HW':>6} {'ISR':9} what"


class ReplicaSnapshot(NamedTuple):
    """The state of one replica, as far as lines show it."""

    role: str
    leader_epoch: int | None
    log_end_offset: int
    high_watermark: int
    in_sync_replicas: tuple[int, ...]


class NarratedLine(NamedTuple):
    """One event, with the replica's new state if it changed one."""

    at_seconds: float
    what: str
    broker_id: int | None = None
    partition: TopicPartition | None = None
    seen: ReplicaSnapshot | None = None

    def __str__(self) -> str:
        broker = "-" if self.broker_id is None else self.broker_id
        start = f"{self.at_seconds:9.3f} {broker:>6} {self.partition or '-'!s:9}"
        if self.seen is None:
            return f"{start} {'':>5} {'':>6} {'':>6} {'':9} {self.what}"
        epoch = "-" if self.seen.leader_epoch is None else self.seen.leader_epoch
        members = ",".join(map(str, self.seen.in_sync_replicas)) or "-"
        columns = f"{epoch:>5} {self.seen.log_end_offset:>6} {self.seen.high_watermark:>6} {members:9}"
        return f"{start} {columns} {self.what}"

    def as_json(self) -> dict[str, object]:
        found: dict[str, object] = {"event": "world" if self.broker_id is None else "state"}
        found |= {"at_seconds": round(self.at_seconds, 6), "what": self.what}
        if self.broker_id is not None:
            found |= {"broker": self.broker_id, "partition": str(self.partition)}
        if self.seen is not None:
            found |= self.seen._asdict()
        return found


class Narrator(ReplicaListener):
    """A listener (`simulation/checks/checker.py`) that remembers the last state of each replica."""

    def __init__(self, now: Callable[[], float], on_line: Callable[[NarratedLine], None]) -> None:
        self.lines: list[NarratedLine] = []
        self._now = now
        self._on_line = on_line
        self._seen: dict[tuple[TopicPartition, int], ReplicaSnapshot] = {}
        self._agreed_at: dict[TopicPartition, list[int]] = {}
        """Places in `lines` where all replicas of a partition had the same log end and high watermark."""

    def _add(self, line: NarratedLine) -> None:
        self.lines.append(line)
        self._on_line(line)

    def fault(self, line: str) -> None:
        """A line of the injector's history: time, then what."""
        self._add(NarratedLine(self._now(), f"world: {line.split(maxsplit=1)[-1]}"))

    # ------------------------------------------------------------------------------------------------- as a listener
    def replica_loaded(self, replica: ObservedReplica) -> None:
        self._look(replica, "loaded")

    def stepped(
        self, replica: ObservedReplica, event: ev.ReplicaEvent, effects: Sequence[ev.ReplicaEffect], refused: bool
    ) -> None:
        self._look(replica, "")

    def _look(self, replica: ObservedReplica, why: str) -> None:
        state = replica.state
        key = replica.topic_partition, state.config.broker_id
        before = None if why else self._seen.get(key)
        now = ReplicaSnapshot(
            role=state.role.value,
            leader_epoch=state.leader_epoch,
            log_end_offset=state.log_end_offset,
            high_watermark=state.high_watermark,
            in_sync_replicas=tuple(sorted(state.in_sync_replicas)) if state.is_leader else (),
        )
        if now == before:
            return
        self._seen[key] = now
        what = why if before is None else ", ".join(difference(before, now))
        self._add(NarratedLine(self._now(), what or "seen", state.config.broker_id, replica.topic_partition, now))
        replicas = [seen for (partition, _), seen in self._seen.items() if partition == replica.topic_partition]
        if len({(each.log_end_offset, each.high_watermark) for each in replicas}) == 1 and now.high_watermark > 0:
            self._agreed_at.setdefault(replica.topic_partition, []).append(len(self.lines) - 1)

    # --------------------------------------------------------------------------------------------------- a finding
    def shortest_history(self, finding: CheckerFinding) -> list[NarratedLine]:
        """Lines about the finding's partition, and faults, since its replicas last agreed before it."""
        end = len(self.lines)
        if finding.at_seconds is not None:
            end = sum(1 for line in self.lines if line.at_seconds <= finding.at_seconds)
        partition = finding.partition
        agreed = [place for place in self._agreed_at.get(partition, []) if place < end] if partition is not None else []
        start = agreed[-1] if agreed else 0
        if finding.at_seconds is None and len(agreed) > 1:  # at the end all agree again: show the longest disagreement
            gaps = [(later - earlier, earlier) for earlier, later in itertools.pairwise(agreed)]
            start = max(gaps)[1]
        lines = [line for line in self.lines[start:end] if line.partition in (None, partition)]
        return lines[-HISTORY_LINES_MAX:]


def difference(before: ReplicaSnapshot, now: ReplicaSnapshot) -> list[str]:
    """What changed, the most important first."""
    found = []
    if now.role != before.role:
        found.append(f"{before.role} -> {now.role}")
    elif now.leader_epoch != before.leader_epoch:
        found.append(f"{now.role} in a new epoch")
    if now.log_end_offset < before.log_end_offset:
        found.append(f"truncated {before.log_end_offset} -> {now.log_end_offset}")
    elif now.log_end_offset > before.log_end_offset:
        found.append("append")
    if now.high_watermark != before.high_watermark:
        found.append("HW rose" if now.high_watermark > before.high_watermark else "HW fell")
    if now.in_sync_replicas != before.in_sync_replicas and now.role == before.role:
        found.append("ISR changed")
    return found
