"""Checks every replica after every step: high watermarks, epochs, logs and answers, against what the whole cluster
wrote.

Owns: the reference log and the checked state of each living replica. Checks I2-I7, I10-I14, I16-I19, I23-I26, I29, I32,
I35 of the promised partitions, when it happens. Leaves to others: the reason of a decision; only its effects count.
"""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.replicas.observations import ObservedReplica
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.state import ReplicaState, Role
from minibroker.broker.requests.produce import ProduceItem
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader
from minibroker.runtime.observer import Handlers
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.reference_state import ReferencePartition, ReferenceState
from minibroker.simulation.checks.replication.in_sync import InSyncRules
from minibroker.simulation.checks.replication.lineage import Lineage, Writer
from minibroker.simulation.checks.replication.reference_log import LoggedBatch, ReferenceLog, read_batches
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.node import PROCESS, Process

ACKS_ALL = -1

FORGETFUL_MS = 60_000
"""With less, brokers forget producers while the run lasts."""


class CheckedReplica(Struct):
    """A living replica and its state as known from outside."""

    replica: ObservedReplica
    partition: TopicPartition
    writer: Writer
    reference_log: ReferenceLog
    lineage: Lineage
    high_watermark: int
    leader_epoch: int | None = None
    was_leader: bool = False
    """Before the step under check: one step may raise the high watermark and hand a damaged log's leadership over."""


class LastKnownDisk(Struct):
    """The machine's disk when a log was last loaded."""

    root: object
    boots: int
    log: PartitionLog


class ReplicaChecker(Checker):
    """`counts_only_synced`: with flushing on, the high watermark may cover only synced bytes."""

    def __init__(self, cluster: SimulatedCluster, reference: ReferenceState, counts_only_synced: bool) -> None:
        self.reference = reference
        self.in_sync = InSyncRules(cluster, reference)
        self._cluster = cluster
        self._only_synced = counts_only_synced
        self._checked: dict[ObservedReplica, CheckedReplica] = {}
        self._logs: dict[PartitionLog, CheckedReplica] = {}
        self._reference_logs: dict[tuple[int, TopicPartition], ReferenceLog] = {}
        self._reference_logs_before: dict[tuple[int, TopicPartition], ReferenceLog] = {}
        self._last_sound: dict[tuple[int, TopicPartition], ReferenceLog] = {}
        """What each log held when it was last sound."""
        self._disks: dict[tuple[int, TopicPartition], LastKnownDisk] = {}
        self._lineages: dict[TopicPartition, Lineage] = {}
        self._members: dict[TopicPartition, tuple[int, ...]] = {}
        self._controller_epochs: dict[Writer, int] = {}
        self._handlers: dict[type[ev.ReplicaEvent], Callable[[CheckedReplica, ReplicaState, Any], None]] = {
            ev.LeaderAndIsrReceived: self._on_leader_and_isr,
            ev.FollowerFetched: self._on_follower_fetched,
            ev.ReplicaStopped: self._on_replica_stopped,
            ev.LogHealed: self._on_log_healed,
        }

    def world_events(self) -> Handlers:
        return self.in_sync.world_events()

    def sample(self) -> None:
        self.in_sync.sample()

    def lineage(self, partition: TopicPartition) -> Lineage:
        found = self._lineages.get(partition)
        if found is None:

            def find(invariant: str, text: str, *facts: str) -> None:
                self.reference.find(invariant, text, partition, *facts)

            found = self._lineages[partition] = Lineage(find)
        return found

    def checked(self, broker_id: int, partition: TopicPartition) -> CheckedReplica | None:
        """The replica of a living broker."""
        replica = self._cluster.replica(broker_id, partition.topic, partition.partition)
        return None if replica is None else self._checked.get(replica)

    # --------------------------------------------------------------------------------------------------- observation
    def ordered(self, controller_epoch: int) -> None:
        """I29, for the order as a whole."""
        writer = writer_of(PROCESS.get())
        known = self._controller_epochs.get(writer, 0)
        self._controller_epochs[writer] = max(known, controller_epoch)
        if controller_epoch < known:
            facts = (f"{writer} has obeyed controller epoch {known}", f"then it obeyed {controller_epoch}")
            self.reference.find("I29", "an order of a deposed controller was obeyed", None, *facts)

    def replica_loaded(self, replica: ObservedReplica) -> None:
        partition = replica.topic_partition
        if not self.reference.is_promised(partition.topic):
            return
        writer = writer_of(PROCESS.get())
        lineage = self.lineage(partition)
        is_faulty = writer.broker_id in self.reference.faulty
        reference_log = self._loaded_reference_log(writer.broker_id, replica, writer, lineage, is_faulty)
        checked = CheckedReplica(replica, partition, writer, reference_log, lineage, replica.state.high_watermark)
        self._checked[replica] = self._logs[replica.log] = checked
        if is_faulty:
            return  # checked when it leads, serves or counts as in sync
        self._check_epochs(checked)
        self._check_producers(checked)
        lineage.compare(reference_log, 0, checked.high_watermark, str(writer))

    def _loaded_reference_log(
        self, broker_id: int, replica: ObservedReplica, writer: Writer, lineage: Lineage, is_faulty: bool
    ) -> ReferenceLog:
        """A start must find what the last process left: all of it after a kill, the synced part after a power loss
        (I10, I12)."""
        key, log = (broker_id, replica.topic_partition), replica.log
        storage = self._cluster.world.machine(f"broker-{broker_id}").storage
        old, before = self._reference_logs.get(key), self._disks.get(key)
        if log.damage is not None:  # nothing may rely on its content
            found = ReferenceLog(log.log_start_offset, [])
            found.uncertain = True
        else:
            found = ReferenceLog(log.log_start_offset, read_batches(storage, log))
        self._reference_logs[key] = found
        if old is not None:
            self._reference_logs_before[key] = old
        if old is not None and not old.uncertain:
            self._last_sound[key] = old
        self._disks[key] = LastKnownDisk(storage.root, storage.boots, log)
        if before is not None and before.log.damage is not None and before.log.directory == log.directory:
            self._check_dropped(broker_id, replica, log.damage is not None)
            if not is_faulty:
                return found
        if log.damage is not None:
            return found
        if is_faulty:
            if (
                found.end != log.log_end_offset
            ):  # the start did not read the rotten bytes: the log also has what follows them
                found = ReferenceLog(log.log_start_offset, read_batches(storage, log, past_rot=True))
            self._reference_logs[key] = found = _as_loaded(found, old, log)
            return found
        if found.end != log.log_end_offset:
            facts = (f"its files end at {found.end}", f"its log end offset is {log.log_end_offset}")
            self.reference.find(
                "I12", f"{writer} loaded a log that is not in its files", replica.topic_partition, *facts
            )
        for batch in found.batches:
            if not lineage.knows(batch):
                self.reference.find(
                    "I16", f"{writer} found {batch} in its log, which no process wrote", replica.topic_partition
                )
        if old is None or before is None or before.root is not storage.root or old.uncertain:
            return found
        kept_from = max(before.log.segments[0].base_offset, log.log_start_offset)  # retention removed the rest
        kept_to = old.end if before.boots == storage.boots else before.log.recovery_point
        for batch in old.between(kept_from, kept_to):
            if found.at(batch.base_offset) != batch:
                facts = (f"{batch} was {'written' if kept_to == old.end else 'synced'}", f"the log ends at {found.end}")
                self.reference.find("I10", f"{writer} lost a record by its restart", replica.topic_partition, *facts)
                break
        return found

    def _check_dropped(self, broker_id: int, replica: ObservedReplica, is_damaged: bool) -> None:
        """I40: a damaged log is given up only if no ISR counts on it. A log with repaired bytes is exempt."""
        actual = self.reference.state(replica.topic_partition)
        sound = self._last_sound.get((broker_id, replica.topic_partition))
        if sound is not None and not sound.batches:
            return  # it was empty before it was damaged, and is whole again (seed 17070655)
        if not is_damaged and not replica.log.size_bytes and actual is not None and broker_id in actual.members:
            facts = (f"the ISR is {actual.members} in epoch {actual.leader_epoch}",)
            text = f"broker {broker_id} gave up its damaged log while it was in the ISR"
            self.reference.find("I40", text, replica.topic_partition, *facts)

    def appended(self, log: PartitionLog, batches: Sequence[BatchHeader]) -> None:
        checked = self._logs.get(log)
        if checked is None:
            return
        for header in batches:
            batch = LoggedBatch.of(header)
            checked.lineage.appended(checked.reference_log, batch, checked.writer)
            checked.reference_log.append(batch)

    def shortened(self, log: PartitionLog, failed: bool) -> None:
        checked = self._logs.get(log)
        if checked is None:
            return
        if failed:
            checked.reference_log.uncertain = True
            return
        if log.log_end_offset < checked.reference_log.end:
            gone = checked.reference_log.cut_to(log.log_end_offset)
            if log.log_end_offset < checked.reference_log.start:
                checked.reference_log.reset_to(log.log_end_offset)
            self._check_cut(checked, gone)
            self._check_epochs(checked)
        elif log.log_start_offset == log.log_end_offset > checked.reference_log.end:
            checked.reference_log.reset_to(log.log_end_offset)  # retention passed it: it holds nothing any more
        elif log.segments[0].base_offset == log.log_end_offset == checked.reference_log.end:
            # it could not be compared: all of it is dropped (seed 17100189)
            checked.reference_log.reset_to(log.log_end_offset)

    def _check_cut(self, checked: CheckedReplica, gone: Sequence[LoggedBatch]) -> None:
        if checked.writer.broker_id in self.reference.faulty and checked.replica.state.role is not Role.LEADER:
            return  # a copy changed by a faulty disk is cut, and fetched again
        for batch in gone:
            if checked.lineage.committed.get(batch.base_offset) == batch:
                facts = (f"{batch} is committed", f"{checked.writer} held it and cut to {checked.reference_log.end}")
                self.reference.find("I32", "a committed record was cut", checked.partition, *facts)
                return

    def stepped(
        self, replica: ObservedReplica, event: ev.ReplicaEvent, effects: Sequence[ev.ReplicaEffect], refused: bool
    ) -> None:
        checked = self._checked.get(replica)
        if checked is None:
            return
        state = replica.state
        if state.role is Role.LEADER and state.log_start_offset > checked.lineage.deleted_below:
            checked.lineage.deleted_below = state.log_start_offset
            self.reference.deleted_below[checked.partition] = state.log_start_offset
        if state.high_watermark != checked.high_watermark:
            self._high_watermark_moved(checked, state)
        checked.was_leader = state.role is Role.LEADER
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(checked, state, event)
        self.in_sync.stepped(checked.writer, checked.partition, state, event, refused)
        for effect in effects:
            if type(effect) is ev.AnswerProduce and effect.error_code is ErrorCode.NONE:
                base_offset = effect.base_offset
                for token in effect.tokens:
                    self._check_answer(checked, state, token, base_offset)
                    if base_offset is not None:
                        base_offset += token.header.record_count
            elif type(effect) is ev.ProposeIsr:
                self.in_sync.proposed(checked.writer, checked.partition, state, effect)

    # ---------------------------------------------------------------------------------------------- high watermarks
    def _high_watermark_moved(self, checked: CheckedReplica, state: ReplicaState) -> None:
        """I11, I19, I22, I32. If retention has emptied a former leader's log, and its next leader starts earlier, the
        high watermark falls with it: no record was given up (seed 9000341)."""
        before, high_watermark, checked.high_watermark = (
            checked.high_watermark,
            state.high_watermark,
            state.high_watermark,
        )
        starts_over = checked.writer.broker_id in self.reference.faulty and state.role is not Role.LEADER
        held_nothing = checked.reference_log.start == checked.reference_log.end
        starts_over |= held_nothing and high_watermark == state.log_start_offset == state.log_end_offset
        if high_watermark < before and (checked.lineage.is_broken or starts_over):
            return
        if high_watermark < before:
            invariant = "I32" if state.log_end_offset == high_watermark else "I11"
            facts = (f"it was {before}", f"it is {high_watermark}, and the log ends at {state.log_end_offset}")
            self.reference.find(invariant, f"the high watermark of {checked.writer} fell", checked.partition, *facts)
        elif state.role is Role.LEADER or checked.was_leader:
            known = min(high_watermark, checked.lineage.committed_end)
            if known > before:
                checked.lineage.compare(checked.reference_log, before, known, str(checked.writer))
            new = checked.lineage.commit(checked.reference_log, high_watermark, checked.writer)
            self._check_committed(checked, state, new)
        else:
            starts_over = state.log_start_offset == state.log_end_offset  # the log follows with the next effect
            checked.lineage.compare(
                checked.reference_log, high_watermark if starts_over else before, high_watermark, str(checked.writer)
            )

    def _check_committed(self, checked: CheckedReplica, state: ReplicaState, new: Sequence[LoggedBatch]) -> None:
        """I3, I4, I24 and, with flushing on, that only synced bytes counted (hardening rule 2)."""
        actual = self.reference.state(checked.partition)
        if actual is None or actual.leader_epoch != state.leader_epoch or actual.leader != checked.writer.broker_id:
            return
        holders = 0
        for broker_id in self._cluster.broker_ids:
            reference_log = self._reference_logs.get((broker_id, checked.partition))
            holds = _holds(reference_log, new)
            if broker_id not in actual.members:
                holders += holds
            elif self._is_restarted(broker_id, actual):
                holders += holds or self._held_before_loss(broker_id, checked.partition, new)
            else:
                holders += holds
                self._check_member(checked, broker_id, holds, state.high_watermark)
        if holders < min(actual.min_isr, actual.replication_factor):
            facts = (f"min.insync.replicas={actual.min_isr}", f"{holders} logs hold {[str(b) for b in new]}")
            self.reference.find("I24", "committed with too few copies", checked.partition, *facts)

    def _held_before_loss(self, broker_id: int, partition: TopicPartition, new: Sequence[LoggedBatch]) -> bool:
        """Without flushing, a follower's copy counts as soon as it fetches. Its power may fail before the high
        watermark covers the copy: the leader does not know yet (seed 17001320). With flushing, only a faulty disk loses
        a synced copy, by presenting an older one (seed 17071539)."""
        may_be_lost = not self._only_synced or broker_id in self.reference.faulty
        return may_be_lost and _holds(self._reference_logs_before.get((broker_id, partition)), new)

    def _check_member(self, leader: CheckedReplica, broker_id: int, holds: bool, high_watermark: int) -> None:
        member = self.checked(broker_id, leader.partition)
        if member is None or member.reference_log.uncertain:
            return
        if not holds or member.reference_log.end < high_watermark:
            facts = (
                f"broker {broker_id} of the ISR ends at {member.reference_log.end}",
                f"the high watermark of its leader, {leader.writer}, rose to {high_watermark}",
            )
            self.reference.find("I4", "a member of the ISR lacks a committed record", leader.partition, *facts)
        elif self._only_synced and member.replica.log.recovery_point < high_watermark:
            facts = (
                f"{member.writer} has synced up to {member.replica.log.recovery_point}",
                f"the high watermark is {high_watermark}",
            )
            self.reference.find("I4", "the high watermark covers unsynced records", leader.partition, *facts)

    def _is_restarted(self, broker_id: int, actual: ReferencePartition) -> bool:
        """Whether the process that the ISR lists has ended."""
        return actual.incarnations.get(str(broker_id)) != self.reference.incarnation(broker_id)

    # ------------------------------------------------------------------------------------------------------ control
    def _on_leader_and_isr(self, checked: CheckedReplica, state: ReplicaState, event: ev.LeaderAndIsrReceived) -> None:
        """I13, I18, I19; I29 for each partition."""
        if not self.reference.has_led(checked.partition, event.leader_id, event.leader_epoch):
            ordered = f"{checked.writer} got an order that {event.leader_id} leads epoch {event.leader_epoch}"
            self.reference.find("I29", "an order that ZooKeeper never held", checked.partition, ordered)
        if state.leader_epoch == checked.leader_epoch:
            return
        checked.leader_epoch = state.leader_epoch
        if state.role is Role.LEADER:
            assert state.leader_epoch is not None
            self._check_epochs(checked)
            checked.lineage.leads(state.leader_epoch, checked.writer)
            self._check_producers(checked)
            actual = self.reference.state(checked.partition)
            if actual is not None and actual.leader_epoch == state.leader_epoch:  # a late order makes no leader
                self._require_all(checked, f"leads epoch {state.leader_epoch}")

    def state_written(self, partition: TopicPartition) -> None:
        """I3, I6: each ISR member holds all that is committed."""
        self.in_sync.state_written(partition)
        after = self.reference.state(partition)
        if after is None or not self.reference.is_promised(partition.topic):
            return
        before, self._members[partition] = self._members.get(partition), after.members
        if before is not None and after.leader not in (-1, *before) and self.reference.allows_unclean_election:
            self.lineage(partition).record_unclean_election(self._reference_logs.get((after.leader, partition)))
        for broker_id in after.members:
            checked = self.checked(broker_id, after.partition)
            if checked is not None and not self._is_restarted(broker_id, after):
                self._require_all(checked, f"is in the ISR {after.members} of epoch {after.leader_epoch}")

    def _require_all(self, checked: CheckedReplica, what: str) -> None:
        if not checked.reference_log.uncertain and not checked.lineage.holds_all(checked.reference_log):
            facts = (
                f"{checked.writer} {what} and ends at {checked.reference_log.end}",
                f"committed: {checked.lineage.last_committed}",
            )
            self.reference.find("I3", "a replica that may lead lacks a committed record", checked.partition, *facts)

    def _on_replica_stopped(self, checked: CheckedReplica, state: ReplicaState, event: ev.ReplicaStopped) -> None:
        """I35: promised topics are never deleted."""
        if event.leader_epoch is None and checked.writer.broker_id not in self.reference.faulty:  # its topic id may rot
            self.reference.find("I35", f"{checked.writer} removed a replica of an existing topic", checked.partition)

    def _on_log_healed(self, checked: CheckedReplica, state: ReplicaState, event: ev.LogHealed) -> None:
        """After a half cut, the content is known again."""
        storage = self._cluster.world.machine(f"broker-{checked.writer.broker_id}").storage
        found = ReferenceLog(checked.replica.log.log_start_offset, read_batches(storage, checked.replica.log))
        is_faulty = checked.writer.broker_id in self.reference.faulty
        checked.reference_log = _as_loaded(found, checked.reference_log, checked.replica.log) if is_faulty else found
        self._reference_logs[checked.writer.broker_id, checked.partition] = checked.reference_log

    def _on_follower_fetched(self, checked: CheckedReplica, state: ReplicaState, event: ev.FollowerFetched) -> None:
        """I7: a fetch names the epoch of the last record before its position."""
        follower = self.checked(event.replica_id, checked.partition)
        if follower is None or follower.replica.state.leader_epoch != event.current_leader_epoch:
            return
        last = follower.reference_log.last
        if follower.writer.broker_id in self.reference.faulty:
            return  # its disk may hold any epoch: only the consequences are checked
        if last is None or last.end_offset != event.fetch_offset or follower.replica.state.role is not Role.FOLLOWER:
            return
        if event.fetch_offset > follower.replica.log.log_start_offset and event.last_fetched_epoch != last.epoch:
            facts = (f"{follower.writer} holds {last}", f"its fetch names epoch {event.last_fetched_epoch}")
            self.reference.find("I7", "a fetch that cannot be checked for divergence", checked.partition, *facts)

    # ------------------------------------------------------------------------------------------------------ answers
    def _check_answer(
        self, checked: CheckedReplica, state: ReplicaState, token: ProduceItem, base_offset: int | None
    ) -> None:
        """I24, I25, I26: an acknowledged batch is in the log, at that offset, and as safe as requested."""
        header = token.header
        if base_offset is None or checked.reference_log.start > base_offset:
            return
        held = checked.reference_log.at(base_offset)
        if held is None or held.crc != header.crc:
            facts = (f"{checked.writer} acknowledged CRC {header.crc:08x} at {base_offset}", f"it holds {held}")
            self.reference.find("I26", "an acknowledged batch is not in the log", checked.partition, *facts)
        elif token._pending.acks == ACKS_ALL:
            if checked.lineage.committed.get(base_offset) != held:
                facts = (f"{checked.writer} acknowledged {held}", f"committed up to {checked.lineage.committed_end}")
                self.reference.find("I24", "acknowledged before it was committed", checked.partition, *facts)
            elif len(state.maximal_in_sync_replicas) < state.effective_min_insync_replicas:
                facts = (f"{checked.writer} acknowledged {held}", f"its ISR is {state.maximal_in_sync_replicas}")
                self.reference.find(
                    "I24", "acknowledged with fewer than the minimum in sync", checked.partition, *facts
                )
        if self.reference.session_ended(checked.writer.broker_id):
            acknowledgement = f"{checked.writer} acknowledged {held}"
            self.reference.find(
                "I29",
                "acknowledged past the ZooKeeper deadline",
                checked.partition,
                acknowledgement,
                "its session is over",
            )

    # ---------------------------------------------------------------------------------------------- remembered state
    def _check_epochs(self, checked: CheckedReplica) -> None:
        """I13: the epoch history gives each batch its epoch."""
        history = checked.replica.state.epoch_history
        for epoch, offset in checked.reference_log.epoch_starts():
            if offset >= checked.replica.log.log_start_offset and history.epoch_at(offset) != epoch:
                facts = (
                    f"{checked.writer} holds a batch of epoch {epoch} at {offset}",
                    f"its history: {history.entries}",
                )
                self.reference.find("I13", "the epoch history contradicts the log", checked.partition, *facts)
                return

    def _check_producers(self, checked: CheckedReplica) -> None:
        """I15, I25: the producer state agrees with the batches in the log. It may lack a producer whose newest batch
        lies below the log start, and it may have forgotten batches where producers expire during the run (or did until
        the setting changed, seed 17540096)."""
        expires = checked.replica.log.config.producer_id_expiration_ms < FORGETFUL_MS
        forgets = expires or self.reference.forgets_producers
        remembered, log_start_offset = checked.replica.log.producers, checked.replica.log.log_start_offset
        for producer_id, (epoch, batches) in checked.reference_log.producers().items():
            if (forgets or batches[-1][2] < log_start_offset) and remembered.get(producer_id) is None:
                continue
            state = remembered.get(producer_id)
            known = (
                None if state is None else [(b.first_sequence, b.last_sequence, b.base_offset) for b in state.batches]
            )
            if known and forgets:
                batches = batches[-len(known) :]
            if state is None or state.producer_epoch != epoch or known is None or known[-len(batches) :] != batches:
                facts = (f"the log of {checked.writer} has {epoch}, {batches}", f"the producer state is {state}")
                self.reference.find(
                    "I25", f"the state of producer {producer_id} contradicts the log", checked.partition, *facts
                )
                return


def _holds(reference_log: ReferenceLog | None, batches: Sequence[LoggedBatch]) -> bool:
    return reference_log is not None and all(reference_log.at(batch.base_offset) == batch for batch in batches)


def _as_loaded(found: ReferenceLog, old: ReferenceLog | None, log: PartitionLog) -> ReferenceLog:
    """For a faulty disk: what was once written there, up to the ends of the log that was loaded."""
    known = [] if old is None else old.between(log.log_start_offset, log.log_end_offset)
    if known and known[-1].end_offset == log.log_end_offset and known[0].base_offset <= log.log_start_offset:
        return ReferenceLog(log.log_start_offset, known)
    return found


def writer_of(process: Process | None) -> Writer:
    """`broker-2` in its third start is (2, 3)."""
    assert process is not None, "brokers run in a process"
    return Writer(int(process.name.rpartition("-")[2]), process.incarnation)
