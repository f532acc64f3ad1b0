"""A test cluster for the pure core: replicas of one partition, with lists as logs and messages moved by hand.

Owns: time, and the lists that stand for logs. It decides nothing: `step` decides what a replica does, and the
interpreter of the product (`broker.replicas.log_effects`) says what an effect on a log means.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from minibroker.broker.replicas.log_effects import LOG_EFFECTS
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.leader import (
    FetchGranted,
    FetchRefused,
    answer_epoch_end,
    check_consumer_fetch,
)
from minibroker.broker.replication.producer_state import ProducerStates
from minibroker.broker.replication.replica import step, step_fetch
from minibroker.broker.replication.state import (
    AskingEpochEnd,
    Fetching,
    ReplicaState,
    ReplicationConfig,
    Role,
    TruncationRule,
)
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.record_batch import BatchHeader
from minibroker.simulation.model.replica import header_for


class StoredBatch:
    """One batch in a log."""

    def __init__(self, header: BatchHeader, value: str) -> None:
        self.header = header
        self.value = value


class CoreReplica:
    """One broker's replica. Implements `log_effects.LogPort`."""

    def __init__(self, cluster: "CoreCluster", broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.log: list[StoredBatch] = []
        self.log_start_offset = 0
        self.producers = ProducerStates()
        self.state = self._fresh()
        self.proposals: list[ev.ProposeIsr] = []
        self.wants_sync = False
        self.wants_fetch = False

    def _fresh(self) -> ReplicaState:
        return ReplicaState(config=replace(self.cluster.config, broker_id=self.broker_id))

    def handle(self, event: ev.ReplicaEvent) -> None:
        self.perform(step(self.state, event))

    def perform(self, effects: list[ev.ReplicaEffect]) -> None:
        for effect in effects:
            performer = LOG_EFFECTS.get(type(effect))
            if performer is not None:
                performer(self, effect)
            else:
                self._perform_elsewhere(effect)

    def _perform_elsewhere(self, effect: ev.ReplicaEffect) -> None:
        """What concerns clients, other brokers and people: by hand, or printed."""
        show = self.cluster.print
        match effect:
            case ev.AnswerProduce():
                for index, (value, _) in enumerate(effect.tokens):
                    at = None if effect.base_offset is None else effect.base_offset + index
                    name = effect.error_code.name if effect.error_code else f"ok at={at}"
                    note = f": {effect.error_message}" if effect.error_message else ""
                    show(f"{self.broker_id} answers {value} {name}{note}")
            case ev.ProposeIsr():
                members = ",".join(str(b) for b, _ in effect.new_isr_with_epochs)
                show(f"{self.broker_id} proposes {effect.kind.value} isr={members}")
                self.proposals.append(effect)
            case ev.IsrCommitted():
                show(f"{self.broker_id} isr {_set(effect.before)} -> {_set(effect.after)}")
            case ev.SyncLog():
                self.wants_sync = True
                show(f"{self.broker_id} wants a sync")
            case ev.FetchNext():
                self.wants_fetch = True
            case ev.AskEpochEnd():
                show(f"{self.broker_id} asks end of epoch {effect.epoch}")
            case ev.AskLeaderEnds():
                show(f"{self.broker_id} asks the leader's ends")
            case ev.BackOff():
                show(f"{self.broker_id} backs off: {effect.error_code.name}")
            case ev.Warn():
                show(f"{self.broker_id} warns: {effect.message}")

    # ------------------------------------------------------------------------------------------------------ log port
    decide = handle

    @property
    def first_offset(self) -> int:
        return self.log[0].header.base_offset if self.log else self.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log[-1].header.end_offset if self.log else self.log_start_offset

    def now_ms(self) -> int:
        return self.cluster.now_ms

    def append_batches(self, effect: ev.AppendBatches) -> int:
        for offset, (value, producer) in enumerate(effect.tokens, effect.base_offset):
            header = header_for(offset, effect.leader_epoch, producer)
            self.log.append(StoredBatch(header, value))
            self.producers.update(header)
        return self.log_end_offset

    def appended(self) -> None:
        """Followers fetch by hand."""

    def append_fetched(self, effect: ev.AppendFetched) -> None:
        for header in effect.batches:
            self.log.append(StoredBatch(header, self.cluster.values[header.base_offset, header.partition_leader_epoch]))
            self.producers.update(header)

    def truncate_to(self, effect: ev.TruncateTo) -> None:
        self.cluster.print(f"{self.broker_id} truncates to {effect.end_offset}")
        self.log = [w for w in self.log if w.header.base_offset < effect.end_offset]
        self._know_producers()

    def reset_to(self, effect: ev.ResetTo) -> None:
        self.cluster.print(f"{self.broker_id} is reset to {effect.offset}")
        self.log.clear()
        self.log_start_offset = effect.offset
        self._know_producers()

    def trim_before(self, effect: ev.TrimBefore) -> None:
        self.log_start_offset = effect.log_start_offset
        if effect.drops_all:
            self.log.clear()

    def lower_start(self, effect: ev.LowerStart) -> int:
        self.log_start_offset = max(effect.log_start_offset, self.first_offset)
        return self.log_start_offset

    def write_epoch_history(self, entries: Sequence[tuple[int, int]]) -> None:
        """A restart derives it from the batches."""

    def _know_producers(self) -> None:
        self.producers = ProducerStates()
        for written in self.log:
            self.producers.update(written.header)

    def restart(self, keep: int | None = None) -> None:
        """The process starts again; with `keep` the log has lost everything from that offset on."""
        old = self.state
        if keep is not None:
            self.log = [w for w in self.log if w.header.base_offset < keep]
        self.state = self._fresh()
        self.state.log_start_offset = self.log_start_offset
        self.state.log_end_offset = self.log_end_offset
        for written in self.log:
            self.state.epoch_history.assign(written.header.partition_leader_epoch, written.header.base_offset)
        self._know_producers()
        self.state.high_watermark = min(old.high_watermark, self.state.log_end_offset)
        self.state.synced_end_offset = min(old.synced_end_offset, self.state.log_end_offset)
        self.proposals.clear()
        self.wants_sync = False

    def row(self) -> str:
        state = self.state
        isr = _set(state.in_sync_replicas)
        if state.pending_isr is not None:
            isr += f" ({state.pending_isr.kind.value} {_set(state.pending_isr.in_sync_replicas)})"
        remotes = " ".join(
            f"{b}:{'?' if r.log_end_offset is None else r.log_end_offset}" for b, r in sorted(state.remotes.items())
        )
        history = " ".join(f"{e}@{s}" for e, s in state.epoch_history.entries)
        values = "".join(w.value for w in self.log)
        epoch = "-" if state.leader_epoch is None else state.leader_epoch
        fenced = " fenced" if state.fenced else ""
        return (
            f"{self.broker_id} {state.role.value:8}{fenced} epoch={epoch} start={state.log_start_offset} "
            f"leo={state.log_end_offset} hw={state.high_watermark} isr={isr or '-'} remotes={remotes or '-'} "
            f"history={history or '-'} log={values or '-'}"
        )


def _set(members: tuple[int, ...]) -> str:
    return ",".join(str(b) for b in sorted(members))


class CoreCluster:
    """All replicas of the partition, the time, and the output since the last command."""

    def __init__(
        self,
        size: int,
        min_insync: int = 1,
        lag_ms: int = 10_000,
        flush: bool = False,
        rule: str = "leader-epoch",
    ) -> None:
        self.config = ReplicationConfig(
            broker_id=0,
            min_insync_replicas=min_insync,
            replica_lag_time_max_ms=lag_ms,
            counts_only_synced=flush,
            truncation_rule=TruncationRule(rule),
        )
        self.now_ms = 1_000_000
        self.printed: list[str] = []
        self.values: dict[tuple[int, int], str] = {}
        self.assignment = tuple(range(1, size + 1))
        self.replicas = {b: CoreReplica(self, b) for b in self.assignment}
        self.isr = self.assignment
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.leader: int | None = None
        self.held: dict[str, Any] = {}
        self._serial = itertools.count(1)

    @property
    def _unchecked(self) -> bool:
        return self.config.truncation_rule is TruncationRule.HIGH_WATERMARK

    def print(self, line: str) -> None:
        self.printed.append(line)

    # ---------------------------------------------------------------------------------------------------- controller
    def elect(self, leader: int | None, isr: tuple[int, ...] | None = None, to: tuple[int, ...] | None = None) -> None:
        """Begin a new leader epoch, and send LeaderAndIsr to all replicas or only to some."""
        self.leader = leader
        self.leader_epoch += 1
        self.partition_epoch += 1
        self.isr = self.isr if isr is None else isr
        self.send_order(to or self.assignment)

    def send_order(self, brokers: tuple[int, ...]) -> None:
        """Send the current LeaderAndIsr."""
        event = self.order()
        for broker_id in brokers:
            self.replicas[broker_id].handle(event)

    def order(self) -> ev.LeaderAndIsrReceived:
        """The current LeaderAndIsr, not sent yet."""
        return ev.LeaderAndIsrReceived(
            now_ms=self.now_ms,
            leader_id=self.leader,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            in_sync_replicas=self.isr,
            assignment=self.assignment,
        )

    def alter(self, broker_id: int, answer: str) -> None:
        """Answer the oldest proposal of a leader: ok, lost, or the name of an error."""
        replica = self.replicas[broker_id]
        proposal = replica.proposals.pop(0)
        if answer == "lost":
            replica.handle(ev.AlterPartitionLost(proposal_id=proposal.proposal_id))
            return
        code = ErrorCode.NONE if answer == "ok" else ErrorCode[answer]
        if code is ErrorCode.NONE:
            self.partition_epoch += 1
            self.isr = tuple(b for b, _ in proposal.new_isr_with_epochs)
        replica.handle(
            ev.AlterPartitionAnswered(
                proposal_id=proposal.proposal_id,
                error_code=code,
                leader_epoch=proposal.leader_epoch,
                in_sync_replicas=self.isr,
                partition_epoch=self.partition_epoch,
                now_ms=self.now_ms,
            )
        )

    # ------------------------------------------------------------------------------------------------------- clients
    def produce(self, broker_id: int, value: str, acks: int = -1, producer: tuple[int, int, int] | None = None) -> None:
        replica = self.replicas[broker_id]
        before = len(replica.log)
        header = header_for(0, -1, producer)
        replica.handle(
            ev.ProduceReceived(tokens=((value, producer),), acks=acks, headers=(header,), producers=replica.producers)
        )
        for written in replica.log[before:]:
            key = (written.header.base_offset, written.header.partition_leader_epoch)
            assert self.values.setdefault(key, value) == value, f"I17: two records at {key}"

    def read(self, broker_id: int, offset: int) -> str:
        """What a consumer reads from that broker."""
        replica = self.replicas[broker_id]
        result = check_consumer_fetch(replica.state, None, offset, None)
        if isinstance(result, FetchRefused):
            return result.error_code.name
        found = [w.value for w in replica.log if offset <= w.header.base_offset < result.end_offset]
        return "".join(found) or "nothing"

    # ----------------------------------------------------------------------------------------------------- followers
    def ask(self, follower: int, leader: int | None = None, hold: str | None = None) -> None:
        """Deliver a follower's pending question, and its answer now, or later by `deliver`."""
        replica = self.replicas[follower]
        phase = replica.state.phase
        if not isinstance(phase, AskingEpochEnd):
            self.print(f"{follower} has no question")
            return
        epoch = replica.state.leader_epoch
        assert epoch is not None
        source = self.replicas[leader or replica.state.leader_id or 0]
        code, found, end = answer_epoch_end(source.state, epoch, phase.epoch)
        answer = ev.EpochEndAnswered(
            leader_epoch=epoch, asked_epoch=phase.epoch, error_code=code, epoch=found, end_offset=end
        )
        self._deliver_or_hold(follower, answer, hold)

    def follow(self, follower: int) -> None:
        """Ask until the follower is aligned."""
        while isinstance(self.replicas[follower].state.phase, AskingEpochEnd):
            self.ask(follower)

    def fetch(
        self,
        follower: int,
        leader: int | None = None,
        epoch: int | None = None,
        at: int | None = None,
        broker_epoch: int | None = None,
        hold: str | None = None,
        eligible: bool = True,
    ) -> None:
        """One Fetch from follower to leader and its reply."""
        replica = self.replicas[follower]
        if at is None and not isinstance(replica.state.phase, Fetching):
            self.print(f"{follower} is not aligned")
            return
        source = self.replicas[leader or replica.state.leader_id or 0]
        asked_epoch = replica.state.leader_epoch if epoch is None else epoch
        offset = replica.state.log_end_offset if at is None else at
        result, effects = step_fetch(
            source.state,
            ev.FollowerFetched(
                now_ms=self.now_ms,
                replica_id=follower,
                broker_epoch=broker_epoch,
                current_leader_epoch=asked_epoch,
                fetch_offset=offset,
                last_fetched_epoch=None if self._unchecked else replica.state.last_fetched_epoch,
                eligible=eligible,
                log_start_offset=replica.state.log_start_offset,
            ),
        )
        source.perform(effects)
        assert asked_epoch is not None
        self._deliver_or_hold(follower, self._reply(source, result, asked_epoch, offset), hold)

    def _reply(
        self, source: CoreReplica, result: FetchGranted | FetchRefused, epoch: int, offset: int
    ) -> ev.FetchAnswered:
        if isinstance(result, FetchRefused):
            what = result.error_code.name if result.diverging is None else f"diverging epoch={result.diverging[0]}"
            self.print(f"{source.broker_id} refuses: {what}")
            return ev.FetchAnswered(
                leader_epoch=epoch,
                fetch_offset=offset,
                error_code=result.error_code,
                high_watermark=source.state.high_watermark if result.diverging is not None else None,
                diverging=result.diverging is not None,
            )
        headers = tuple(w.header for w in source.log if offset <= w.header.base_offset < result.end_offset)
        return ev.FetchAnswered(
            leader_epoch=epoch,
            fetch_offset=offset,
            error_code=ErrorCode.NONE,
            high_watermark=result.high_watermark,
            log_start_offset=result.log_start_offset,
            batches=headers,
        )

    def ends(self, follower: int) -> None:
        """Deliver the leader's log start and end, requested after OFFSET_OUT_OF_RANGE."""
        replica = self.replicas[follower]
        source = self.replicas[replica.state.leader_id or 0].state
        assert replica.state.leader_epoch is not None
        replica.handle(
            ev.LeaderEndsAnswered(
                leader_epoch=replica.state.leader_epoch,
                error_code=ErrorCode.NONE,
                log_start_offset=source.log_start_offset,
                log_end_offset=source.log_end_offset,
            )
        )

    def _deliver_or_hold(self, follower: int, event: ev.ReplicaEvent, hold: str | None) -> None:
        if hold is not None:
            self.held[hold] = (follower, event)
        else:
            self.replicas[follower].handle(event)

    def deliver(self, name: str) -> None:
        """Deliver a held reply."""
        follower, event = self.held.pop(name)
        self.replicas[follower].handle(event)

    # ---------------------------------------------------------------------------------------------------------- time
    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    def check_lag(self, broker_id: int) -> None:
        self.replicas[broker_id].handle(ev.LagChecked(now_ms=self.now_ms))

    def sync(self, broker_id: int) -> None:
        replica = self.replicas[broker_id]
        replica.wants_sync = False
        replica.handle(ev.Synced(end_offset=replica.state.log_end_offset, now_ms=self.now_ms))

    def table(self) -> list[str]:
        return [replica.row() for replica in self.replicas.values()]

    def leaders(self) -> list[CoreReplica]:
        return [a for a in self.replicas.values() if a.state.role is Role.LEADER]
