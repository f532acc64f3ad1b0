"""One broker's replica in the small model: the real pure core, a log as a tuple, and the few checks of its shell.

Owns: what one replica does with one stimulus, as a function of values that is computed once and remembered. Leaves to
others: replication itself (`broker.replication.replica.step`), what an effect on the log means
(`broker.replicas.log_effects`), the network and the controller.

Time stands still at 0; that a follower was slow is a stimulus of its own (`lag`). So a time in the state is only
'lately' or 'long ago', and two runs that differ in nothing else have one state.
"""

import copy
from collections.abc import Sequence
from enum import Enum
from functools import cache
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from minibroker.broker.replicas.log_effects import LOG_EFFECTS
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.epoch_history import EpochHistory
from minibroker.broker.replication.high_watermark import NEVER_MS
from minibroker.broker.replication.leader import FetchGranted, FetchRefused, answer_epoch_end, refuse_as_leader
from minibroker.broker.replication.producer_state import ProducerStates
from minibroker.broker.replication.replica import step, step_fetch
from minibroker.broker.replication.state import ReplicaState, ReplicationConfig
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.record_batch import BatchHeader

NOW_MS = 0
LAG_MS = 10

Record: TypeAlias = tuple[int, str]
"""(leader epoch, value)"""
Stimulus: TypeAlias = tuple[Any, ...]
"""(name, values...): what happens to a replica; hashable, so that its outcome can be remembered."""
Proposal: TypeAlias = tuple[int, int, int, tuple[tuple[int, int | None], ...]]
"""(proposal id, leader epoch, partition epoch, ((member, broker epoch), ...))"""

_NO_PRODUCERS = ProducerStates()
"""The clients of the model have no producer id."""


class ModelReplica(Struct, kw_only=True):
    """One broker of the model. Immutable once it is in a catalogue."""

    broker_id: int
    state: ReplicaState
    is_running: bool = True
    broker_epoch: int = 1
    """0: it has no registration."""
    registrations: int = 1
    starts: int = 1
    """Its incarnation; it rises when a process ends."""
    has_lost: bool = False
    """It once lost an unsynced tail, its whole disk, or what a lying disk had not synced."""
    directory: int = 1
    """Id of its log directory; a replaced disk has another one."""
    undisturbed_since: tuple[int, ...] = (1,)
    """Starts since which its log has lost nothing that would be noticed: the process was killed, or stopped."""
    whole_since: tuple[int, ...] = (1,)
    """Starts since which its log is proven whole: it was asked to stop, and the start found the same log ends."""
    controller_epoch: int = 0
    image: tuple[tuple[int, int], ...] = ()
    """Live brokers and their broker epochs, as received from the controller."""
    log: tuple[Record, ...] = ()
    reports: dict[int, int] = {}
    """For the checker only: the end that each follower reported to it in its present leader epoch."""


class StimulusOutcome(Struct, frozen=True):
    """The result of one stimulus."""

    replica: ModelReplica
    reply: Stimulus | None = None
    proposals: tuple[Proposal, ...] = ()
    shown: tuple[Record, ...] = ()
    """What was below its high watermark while it led; a step can raise it and end the leadership."""


def fresh(config: ReplicationConfig, broker_id: int) -> ModelReplica:
    return ModelReplica(broker_id=broker_id, state=ReplicaState(config=_config_of(config, broker_id)))


def freeze(value: Any) -> Any:
    """A hashable value that is equal for equal states."""
    if isinstance(value, Struct):
        return (type(value).__name__, *(freeze(getattr(value, name)) for name in value.__struct_fields__))
    if isinstance(value, EpochHistory):
        return tuple(value.entries)
    if isinstance(value, dict):
        return tuple((key, freeze(value[key])) for key in sorted(value))
    if isinstance(value, list | tuple):
        return tuple(freeze(each) for each in value)
    return value.value if isinstance(value, Enum) else value


def react(before: ModelReplica, stimulus: Stimulus) -> StimulusOutcome:
    """Apply one stimulus to a replica. Raises AssertionError where the core's own checks do."""
    name, *values = stimulus
    if name in _READERS:
        return StimulusOutcome(before, reply=_READERS[name](before, *values))
    actor = _Actor(copy.deepcopy(before))
    reply = _STIMULI[name](actor, *values)
    return StimulusOutcome(actor.replica, reply, tuple(actor.proposals), actor.shown)


class _Actor:
    """A replica in the middle of a change, and the messages that it sends meanwhile. Implements `log_effects.LogPort`.
    Of the other effects only proposals and syncs matter here: what a follower asks next follows from its phase."""

    first_offset = log_start_offset = 0
    """Nothing is ever deleted at the front."""

    def __init__(self, replica: ModelReplica) -> None:
        self.replica = replica
        self.proposals: list[Proposal] = []
        self.values: tuple[str, ...] = ()
        self.shown: tuple[Record, ...] = ()

    def decide(self, event: ev.ReplicaEvent) -> None:
        epoch = self.replica.state.leader_epoch
        effects = step(self.replica.state, event)
        if self.replica.state.leader_epoch != epoch or not self.replica.state.is_leader:
            self.replica.reports = {}
        self.perform(effects)
        self.note_high_watermark()

    def note_high_watermark(self) -> None:
        state = self.replica.state
        if state.is_leader:
            self.shown = max(self.shown, self.replica.log[: state.high_watermark], key=len)

    def perform(self, effects: list[ev.ReplicaEffect]) -> None:
        for effect in effects:
            performer = LOG_EFFECTS.get(type(effect))
            if performer is not None:
                performer(self, effect)
            elif isinstance(effect, ev.ProposeIsr):
                epochs_of = effect.new_isr_with_epochs
                self.proposals.append((effect.proposal_id, effect.leader_epoch, effect.partition_epoch, epochs_of))
        state = self.state
        if state.config.min_insync_replicas > 1 and any(isinstance(each, ev.SyncLog) for each in effects):
            self.decide(ev.Synced(end_offset=state.log_end_offset, now_ms=NOW_MS))

    # ------------------------------------------------------------------------------------------------------ log port
    @property
    def state(self) -> ReplicaState:
        return self.replica.state

    @property
    def log_end_offset(self) -> int:
        return len(self.replica.log)

    def now_ms(self) -> int:
        return NOW_MS

    def append_batches(self, effect: ev.AppendBatches) -> int:
        self.replica.log += tuple((effect.leader_epoch, value) for value in effect.tokens)
        return len(self.replica.log)

    def appended(self) -> None:
        """Followers fetch when the search says so."""

    def append_fetched(self, effect: ev.AppendFetched) -> None:
        epochs = (batch.partition_leader_epoch for batch in effect.batches)
        self.replica.log += tuple(zip(epochs, self.values, strict=True))

    def truncate_to(self, effect: ev.TruncateTo) -> None:
        self.replica.log = self.replica.log[: effect.end_offset]

    def reset_to(self, effect: ev.ResetTo) -> None:
        self.replica.log = self.replica.log[: effect.offset]

    def trim_before(self, effect: ev.TrimBefore) -> None:
        raise AssertionError("every log of the model starts at 0")

    def lower_start(self, effect: ev.LowerStart) -> int:
        raise AssertionError("every log of the model starts at 0")

    def write_epoch_history(self, entries: Sequence[tuple[int, int]]) -> None:
        """A start derives it from the batches."""


# -------------------------------------------------------------------------------------------------------------- queries
def _epoch_end(replica: ModelReplica, leader_epoch: int, epoch: int) -> Stimulus:
    code, found, end = answer_epoch_end(replica.state, leader_epoch, epoch)
    return ("epoch_end", leader_epoch, epoch, int(code), found, end)


def _leader_ends(replica: ModelReplica, leader_epoch: int) -> Stimulus:
    code = refuse_as_leader(replica.state) or ErrorCode.NONE
    return ("ends", leader_epoch, int(code), replica.state.log_end_offset)


_READERS: dict[str, Any] = {"epoch_end?": _epoch_end, "ends?": _leader_ends}


# -------------------------------------------------------------------------------------------------------------- stimuli
def _on_control(
    actor: _Actor, controller_epoch: int, live: tuple[tuple[int, int], ...], order: Stimulus | None
) -> None:
    """A control request that passes the broker-epoch check: metadata first, then the role (`MetadataImage.admit`)."""
    replica = actor.replica
    if controller_epoch < replica.controller_epoch:
        return
    replica.controller_epoch = controller_epoch
    if live != replica.image:
        replica.image = live
        if replica.state.is_leader:
            actor.decide(ev.BrokersChanged(eligible=dict(live), now_ms=NOW_MS))
    if order is not None:
        _, leader, leader_epoch, partition_epoch, members, assignment = order
        actor.decide(
            ev.LeaderAndIsrReceived(
                now_ms=NOW_MS,
                leader_id=leader,
                leader_epoch=leader_epoch,
                partition_epoch=partition_epoch,
                in_sync_replicas=members,
                assignment=assignment,
            )
        )


def _on_produce(actor: _Actor, value: str) -> None:
    actor.decide(ev.ProduceReceived(tokens=(value,), acks=1, headers=(header_for(0, -1),), producers=_NO_PRODUCERS))


def _on_fetched(
    actor: _Actor, follower: int, broker_epoch: int, leader_epoch: int, offset: int, last_epoch: int | None
) -> Stimulus:
    """A follower's fetch; whether it may join comes from the image, as in the shell."""
    replica = actor.replica
    is_own_epoch = leader_epoch == replica.state.leader_epoch and replica.state.is_leader
    answer, effects = step_fetch(
        replica.state,
        ev.FollowerFetched(
            now_ms=NOW_MS,
            replica_id=follower,
            broker_epoch=broker_epoch,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_epoch,
            eligible=dict(replica.image).get(follower) == broker_epoch,
            log_start_offset=0,
        ),
    )
    if is_own_epoch and isinstance(answer, FetchGranted):
        replica.reports = {**replica.reports, follower: offset}
    actor.perform(effects)
    actor.note_high_watermark()
    if isinstance(answer, FetchRefused):
        is_diverging = answer.diverging is not None
        high_watermark = replica.state.high_watermark if is_diverging else None
        return ("reply", leader_epoch, offset, int(answer.error_code), high_watermark, is_diverging, (), ())
    records = replica.log[offset : answer.end_offset]
    return ("reply", leader_epoch, offset, 0, answer.high_watermark, False, records, replica.log[:offset])


def _on_reply(
    actor: _Actor,
    leader_epoch: int,
    offset: int,
    code: int,
    high_watermark: int | None,
    is_diverging: bool,
    records: tuple[Record, ...],
    _prefix: tuple[Record, ...],
) -> None:
    actor.values = tuple(value for _, value in records)
    actor.decide(
        ev.FetchAnswered(
            leader_epoch=leader_epoch,
            fetch_offset=offset,
            error_code=ErrorCode(code),
            high_watermark=high_watermark,
            log_start_offset=None if high_watermark is None else 0,
            diverging=is_diverging,
            batches=tuple(header_for(offset + index, epoch) for index, (epoch, _) in enumerate(records)),
        )
    )


def _on_epoch_end(actor: _Actor, leader_epoch: int, asked: int, code: int, epoch: int | None, end: int | None) -> None:
    actor.decide(
        ev.EpochEndAnswered(
            leader_epoch=leader_epoch, asked_epoch=asked, error_code=ErrorCode(code), epoch=epoch, end_offset=end
        )
    )


def _on_ends(actor: _Actor, leader_epoch: int, code: int, log_end_offset: int) -> None:
    actor.decide(
        ev.LeaderEndsAnswered(leader_epoch=leader_epoch, error_code=ErrorCode(code), log_end_offset=log_end_offset)
    )


def _on_lag(actor: _Actor) -> None:
    """More than the lag limit passes on this leader without a fetch; then its clock is reset to 0."""
    elapsed_ms = LAG_MS + 1
    actor.decide(ev.LagChecked(now_ms=NOW_MS + elapsed_ms))
    state = actor.replica.state
    remotes = {
        broker_id: replace(
            remote,
            last_caught_up_ms=_earlier(remote.last_caught_up_ms, elapsed_ms),
            last_fetch_ms=_earlier(remote.last_fetch_ms, elapsed_ms),
        )
        for broker_id, remote in state.remotes.items()
    }
    actor.replica.state = replace(state, remotes=remotes)


def _on_altered(
    actor: _Actor, proposal_id: int, code: int, leader_epoch: int, members: tuple[int, ...], partition_epoch: int
) -> None:
    actor.decide(
        ev.AlterPartitionAnswered(
            proposal_id=proposal_id,
            error_code=ErrorCode(code),
            leader_epoch=leader_epoch,
            in_sync_replicas=members,
            partition_epoch=partition_epoch,
            now_ms=NOW_MS,
        )
    )


def _on_unanswered(actor: _Actor, proposal_id: int) -> None:
    actor.decide(ev.AlterPartitionLost(proposal_id=proposal_id))


def _on_expire(actor: _Actor) -> None:
    """Its session ended; it had fenced itself before (hardening rule 8)."""
    actor.replica.broker_epoch = 0
    actor.decide(ev.BrokerFenced())


def _on_register(actor: _Actor) -> None:
    """The same process registers again."""
    actor.replica.registrations += 1
    actor.replica.broker_epoch = actor.replica.registrations


def _on_end(actor: _Actor, keep: int | None, is_clean: bool = False) -> None:
    """The process ends; with `keep` the power fails, and the log has lost everything from that offset on."""
    replica = actor.replica
    if keep is not None and keep < len(replica.log):
        replica.log = replica.log[:keep]
        replica.has_lost = True
    replica.is_running, replica.broker_epoch = False, 0
    replica.starts += 1
    replica.undisturbed_since = (*replica.undisturbed_since, replica.starts) if keep is None else (replica.starts,)
    replica.whole_since = (*replica.whole_since, replica.starts) if is_clean else (replica.starts,)
    replica.image, replica.controller_epoch, replica.reports = (), 0, {}
    history = EpochHistory()
    for offset, (epoch, _) in enumerate(replica.log):
        history.assign(epoch, offset)
    end = len(replica.log)
    synced = end if keep is not None else min(replica.state.synced_end_offset, end)
    replica.state = ReplicaState(
        config=replica.state.config, log_end_offset=end, synced_end_offset=synced, epoch_history=history
    )


def _on_replace(actor: _Actor) -> None:
    """A blank disk is put in while the broker is down."""
    _on_end(actor, 0)
    replica = actor.replica
    replica.starts -= 1  # it was down already
    replica.undisturbed_since = replica.whole_since = (replica.starts,)
    replica.directory += 1
    replica.has_lost = True


def _on_forget(actor: _Actor, keep: int) -> None:
    """While the broker is down: its disk had reported a sync that did not happen. Or it was killed, and its last files
    have gone since: nothing shows that."""
    undisturbed_since = actor.replica.undisturbed_since
    _on_end(actor, keep)
    replica = actor.replica
    replica.starts -= 1
    replica.undisturbed_since, replica.whole_since = undisturbed_since, (replica.starts,)


def _on_start(actor: _Actor) -> None:
    """It starts again. The checkpoint of its high watermark is old, so it begins at 0: the worst case."""
    actor.replica.is_running = True
    _on_register(actor)


def _on_renumber(actor: _Actor) -> None:
    """No proposal of it is pending or in flight, so the number of the next one makes no difference."""
    actor.replica.state = replace(actor.replica.state, last_proposal_id=0)


_STIMULI: dict[str, Any] = {
    "renumber": _on_renumber,
    "control": _on_control,
    "produce": _on_produce,
    "fetched": _on_fetched,
    "reply": _on_reply,
    "epoch_end": _on_epoch_end,
    "ends": _on_ends,
    "lag": _on_lag,
    "altered": _on_altered,
    "unanswered": _on_unanswered,
    "expire": _on_expire,
    "register": _on_register,
    "end": _on_end,
    "replace": _on_replace,
    "forget": _on_forget,
    "start": _on_start,
}


def _earlier(time_ms: int, elapsed_ms: int) -> int:
    return NOW_MS if time_ms - elapsed_ms >= -LAG_MS else NEVER_MS


@cache
def _config_of(config: ReplicationConfig, broker_id: int) -> ReplicationConfig:
    return ReplicationConfig(
        broker_id=broker_id,
        min_insync_replicas=config.min_insync_replicas,
        replica_lag_time_max_ms=LAG_MS,
        truncation_rule=config.truncation_rule,
    )


@cache
def header_for(base_offset: int, epoch: int, producer: tuple[int, int, int] | None = None) -> BatchHeader:
    """A batch of one record; `producer` is (id, epoch, sequence)."""
    producer_id, producer_epoch, sequence = producer or (-1, -1, -1)
    return BatchHeader(
        base_offset=base_offset,
        batch_length=100,
        partition_leader_epoch=epoch,
        magic=77,
        crc=0,
        attributes=0,
        last_offset_delta=0,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        record_count=1,
    )
