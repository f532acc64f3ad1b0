"""Random walks over the pure core with crashes: killed processes, power losses, late messages of earlier incarnations.

Here Z also keeps the incarnation of each in-sync replica, as the controller does: a restarted replica leaves the ISR
before it may lead. Bytes are lost only within the promise: another in-sync replica holds them, or they were not synced
while only synced bytes count. Idempotent producers retry until they are acknowledged.
"""

import os

import pytest
from msgspec.structs import replace

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.replica import step_fetch
from minibroker.broker.replication.state import AskingEpochEnd, Fetching
from minibroker.protocol.errors import ErrorCode
from tests.broker.replication.core_cluster import CoreReplica
from tests.broker.replication.test_random_walk import Walk

STEPS = 160
WALKS = int(os.environ.get("WALKS", "250"))
PRODUCER_ID = 7


class CrashWalk(Walk):
    """One seeded walk with crashes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, flush=seed % 3 == 0)
        brokers = self.cluster.assignment
        self.broker_epochs = dict.fromkeys(brokers, 1)
        """The actual broker epochs: a new one with each start."""
        self.known_epochs = dict(self.broker_epochs)
        """The broker epochs that the controller knows."""
        self.recorded_epochs = dict(self.broker_epochs)
        """The broker epochs of the in-sync replicas, as Z keeps them."""
        self.lossy_broker: int | None = None
        self.late_fetches: list[tuple[int, int, ev.FollowerFetched]] = []
        self.late_orders: list[tuple[int, int, ev.LeaderAndIsrReceived]] = []
        self.orphaned_proposals: list[tuple[int, int, ev.ProposeIsr]] = []
        self.sequence = 0
        self.acks_of: dict[str, int] = {}

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
            self._check()
        self._settle()

    def _step(self) -> None:
        actions = {
            self._produce: 20,
            self._produce_idempotent: 12,
            self._fetch: 50,
            self._ask: 20,
            self._deliver: 15,
            self._deliver_late: 12,
            self._elect: 3,
            self._send_any_order: 8,
            self._alter: 14,
            self._lag: 6,
            self._sync: 25,
            self._crash: 4,
            self._notice_restart: 10,
        }
        self.random.choices(list(actions), weights=list(actions.values()))[0]()
        self.cluster.pass_time(self.random.choice([0, 1, 500, 4000]))

    # ------------------------------------------------------------------------------------------------------ clients
    def _produce(self) -> None:
        self.serial += 1
        acks = self.random.choice([-1, -1, 1])
        value = f"<{self.serial}>"
        self.acks_of[value] = acks
        self.cluster.produce(self._actor().broker_id, value, acks)

    def _produce_idempotent(self) -> None:
        """Repeat the same record with the same sequence, to any replica, until it is acknowledged."""
        value = f"[{self.sequence}]"
        if value in self.acked.values():
            self.sequence += 1
            value = f"[{self.sequence}]"
        self.acks_of[value] = -1
        self.cluster.produce(self._actor().broker_id, value, -1, (PRODUCER_ID, 0, self.sequence))

    def _note_acks(self) -> None:
        """I21, I24, I25: an acknowledged record has one offset, and was committed when it was acknowledged."""
        for line in self.cluster.printed:
            words = line.split()
            if words[1] != "answers" or words[3] != "ok" or self.acks_of[words[2]] != -1:
                continue
            state = self.cluster.replicas[int(words[0])].state
            offset = int(words[4].removeprefix("at="))
            assert state.high_watermark > offset, f"I24: acknowledged above the high watermark: {line}"
            assert self.acked.setdefault(offset, words[2]) == words[2], f"I21: two records at {offset}: {line}"
            assert list(self.acked.values()).count(words[2]) == 1, f"I25: {words[2]} has two offsets"
        self.cluster.printed.clear()

    # ---------------------------------------------------------------------------------------------------- followers
    def _fetch(self) -> None:
        replica = self._actor()
        state, cluster = replica.state, self.cluster
        if not isinstance(state.phase, Fetching):
            return
        if state.config.counts_only_synced and state.synced_end_offset < state.log_end_offset:
            return
        broker_epoch = self.broker_epochs[replica.broker_id]
        assert state.leader_id is not None
        if self.random.random() < 0.2:
            event = ev.FollowerFetched(
                now_ms=cluster.now_ms,
                replica_id=replica.broker_id,
                broker_epoch=broker_epoch,
                current_leader_epoch=state.leader_epoch,
                fetch_offset=state.log_end_offset,
                last_fetched_epoch=state.last_fetched_epoch,
                eligible=True,
                log_start_offset=state.log_start_offset,
            )
            self.late_fetches.append((state.leader_id, self.broker_epochs[state.leader_id], event))
        cluster.fetch(replica.broker_id, hold=self._hold(), broker_epoch=broker_epoch)

    def _deliver_late(self) -> None:
        """Deliver an old request; its reply is dropped. No connection outlives the process that it leads to."""
        if self.late_fetches and self.random.random() < 0.6:
            leader, broker_epoch, event = self.late_fetches.pop(self.random.randrange(len(self.late_fetches)))
            if broker_epoch == self.broker_epochs[leader]:
                replica = self.cluster.replicas[leader]
                _, effects = step_fetch(replica.state, replace(event, now_ms=self.cluster.now_ms))
                replica.perform(effects)
        elif self.late_orders:
            broker_id, broker_epoch, order = self.late_orders.pop(self.random.randrange(len(self.late_orders)))
            if broker_epoch == self.broker_epochs[broker_id]:
                self.cluster.replicas[broker_id].handle(replace(order, now_ms=self.cluster.now_ms))

    def _sync(self) -> None:
        replica = self._actor()
        if replica.wants_sync:
            self.cluster.sync(replica.broker_id)

    # --------------------------------------------------------------------------------------------------- controller
    def _is_whole(self, broker_id: int) -> bool:
        return self.recorded_epochs.get(broker_id) == self.known_epochs[broker_id]

    def _lead(self, leader: int, isr: tuple[int, ...]) -> None:
        """Begin a new epoch in Z, and send it to some replicas; others may get it late. A restarted process refuses
        orders to the process before."""
        cluster = self.cluster
        cluster.leader, cluster.isr = leader, isr
        cluster.leader_epoch += 1
        cluster.partition_epoch += 1
        self.recorded_epochs = {b: self.recorded_epochs[b] for b in isr if b in self.recorded_epochs}
        self.recorded_epochs[leader] = self.known_epochs[leader]
        for broker_id in cluster.assignment:
            if self.random.random() < 0.75:
                self._send_order(broker_id)
            elif self.random.random() < 0.5:
                self.late_orders.append((broker_id, self.known_epochs[broker_id], self._order()))

    def _order(self) -> ev.LeaderAndIsrReceived:
        cluster = self.cluster
        return ev.LeaderAndIsrReceived(
            now_ms=cluster.now_ms,
            leader_id=cluster.leader,
            leader_epoch=cluster.leader_epoch,
            partition_epoch=cluster.partition_epoch,
            in_sync_replicas=cluster.isr,
            assignment=cluster.assignment,
        )

    def _send_order(self, broker_id: int) -> None:
        if self.known_epochs[broker_id] == self.broker_epochs[broker_id]:
            self.cluster.send_order((broker_id,))

    def _send_any_order(self) -> None:
        self._send_order(self._actor().broker_id)

    def _elect(self) -> None:
        usable = [b for b in self.cluster.isr if self._is_whole(b)]
        if not usable:
            return
        leader = self.random.choice(usable)
        if len(usable) > 1 and not self._is_loss_unnoticed() and self.random.random() < 0.4:
            gone = self.random.choice([b for b in usable if b != leader])
            usable.remove(gone)
        self._lead(leader, tuple(usable))

    def _notice_restart(self) -> None:
        """The controller sees a new registration: the broker was down and is up again."""
        fresh = [b for b in self.cluster.assignment if self.known_epochs[b] != self.broker_epochs[b]]
        if not fresh:
            return
        broker_id = self.random.choice(fresh)
        self.known_epochs[broker_id] = self.broker_epochs[broker_id]
        cluster = self.cluster
        if broker_id in cluster.isr:
            whole = tuple(b for b in cluster.isr if self._is_whole(b))
            leader = cluster.leader if cluster.leader in whole else None
            if whole:
                self._lead(leader or self.random.choice(whole), whole)
            else:
                self._lead(broker_id, (broker_id,))
        self._send_order(broker_id)

    def _alter(self) -> None:
        if self.orphaned_proposals and self.random.random() < 0.5:
            proposer, broker_epoch, proposal = self.orphaned_proposals.pop(0)
            if self._check_proposal(proposer, broker_epoch, proposal) is ErrorCode.NONE:
                self._apply(proposal)
            return
        replica = self._actor()
        if not replica.proposals:
            return
        proposal = replica.proposals[0]
        cluster = self.cluster
        code = self._check_proposal(replica.broker_id, self.broker_epochs[replica.broker_id], proposal)
        if code is None:  # fulfilled already: success without a write (KAFKA-14144)
            cluster.partition_epoch -= 1
            cluster.alter(replica.broker_id, "ok")
        elif code is not ErrorCode.NONE:
            cluster.alter(replica.broker_id, code.name)
        elif self.random.random() < 0.2:
            self._apply(proposal)
            cluster.alter(replica.broker_id, "lost")
        else:
            self._record(proposal)
            cluster.alter(replica.broker_id, "ok")

    def _check_proposal(self, proposer: int, broker_epoch: int, proposal: ev.ProposeIsr) -> ErrorCode | None:
        cluster = self.cluster
        members = {b for b, _ in proposal.new_isr_with_epochs}
        if broker_epoch != self.known_epochs[proposer]:
            return ErrorCode.STALE_BROKER_EPOCH
        if proposal.leader_epoch != cluster.leader_epoch or proposer != cluster.leader:
            return ErrorCode.FENCED_LEADER_EPOCH
        if members == set(cluster.isr):
            return None
        if proposal.partition_epoch != cluster.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for member, epoch in proposal.new_isr_with_epochs:
            known = (
                epoch == self.known_epochs[member]
                if epoch is not None
                else member in cluster.isr and self._is_whole(member)
            )
            if not known and member != proposer:
                return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE

    def _record(self, proposal: ev.ProposeIsr) -> None:
        self.recorded_epochs = {b: self.known_epochs[b] for b, _ in proposal.new_isr_with_epochs}

    def _apply(self, proposal: ev.ProposeIsr) -> None:
        self._record(proposal)
        self.cluster.isr = tuple(b for b, _ in proposal.new_isr_with_epochs)
        self.cluster.partition_epoch += 1

    # ------------------------------------------------------------------------------------------------------- crashes
    def _crash(self) -> None:
        """A process is killed or loses power, and starts again before the controller notices."""
        replica, cluster = self._actor(), self.cluster
        broker_id, state = replica.broker_id, replica.state
        if self._is_loss_unnoticed():
            return
        keep = None
        if self.random.random() < 0.6:
            if not self._may_lose(replica):
                return
            keep = self.random.randint(state.synced_end_offset, state.log_end_offset)
            if not state.config.counts_only_synced:
                self.lossy_broker = broker_id
        if self.random.random() < 0.5:
            broker_epoch = self.broker_epochs[broker_id]
            self.orphaned_proposals += [(broker_id, broker_epoch, proposal) for proposal in replica.proposals]
        replica.restart(keep)
        replica.state.high_watermark = self.random.randint(0, replica.state.high_watermark)
        if keep is not None:
            replica.state.synced_end_offset = replica.state.log_end_offset
        self.broker_epochs[broker_id] += 1
        cluster.held = {name: held for name, held in cluster.held.items() if held[0] != broker_id}

    def _is_loss_unnoticed(self) -> bool:
        """A replica counts, or may still count, for bytes that it has lost: no other may crash before Z notices."""
        lost = self.lossy_broker
        if lost is not None and self.known_epochs[lost] == self.broker_epochs[lost]:
            self.lossy_broker = None
        return self.lossy_broker is not None

    def _may_lose(self, replica: CoreReplica) -> bool:
        cluster, broker_id = self.cluster, replica.broker_id
        if replica.state.config.counts_only_synced or broker_id not in cluster.isr:
            return True
        others = {b for b in cluster.isr if b != broker_id and self.recorded_epochs.get(b) == self.broker_epochs[b]}
        if cluster.config.min_insync_replicas == 1:  # a pending proposal may leave it alone, and nothing was synced
            proposals = [
                *replica.proposals,
                *(proposal for proposer, _, proposal in self.orphaned_proposals if proposer == broker_id),
            ]
            for proposal in proposals:
                others &= {b for b, _ in proposal.new_isr_with_epochs}
        if others:
            return True
        is_safe_alone = cluster.isr == (broker_id,) and self._current_leader() is replica and not replica.wants_sync
        return is_safe_alone and cluster.config.min_insync_replicas > 1

    def _check_strong_isr(self, leader: CoreReplica) -> None:
        """I3, I4, for those members that still have the incarnation that Z recorded."""
        isr = self.cluster.isr
        self.cluster.isr = tuple(b for b in isr if self.recorded_epochs.get(b) == self.broker_epochs[b])
        try:
            super()._check_strong_isr(leader)
        finally:
            self.cluster.isr = isr

    # --------------------------------------------------------------------------------------------------- liveness
    def _settle(self) -> None:
        """Faults stop: all copies become equal and hold all acknowledged records (I20, I21, I25, I36)."""
        cluster = self.cluster
        cluster.held.clear()
        while any(self.known_epochs[b] != self.broker_epochs[b] for b in cluster.assignment):
            self._notice_restart()
        leader = cluster.replicas[next(b for b in cluster.isr if self._is_whole(b))]
        self._lead(leader.broker_id, tuple(b for b in cluster.isr if self._is_whole(b)))
        cluster.send_order(cluster.assignment)
        for _ in range(8):
            cluster.pass_time(100)
            for broker_id, replica in cluster.replicas.items():
                self._sync_now(replica)
                if isinstance(replica.state.phase, AskingEpochEnd):
                    cluster.follow(broker_id)
                self._sync_now(replica)
                if replica is not leader:
                    cluster.fetch(broker_id, broker_epoch=self.broker_epochs[broker_id])
                self._sync_now(replica)
            while leader.proposals:
                if leader.proposals[0].leader_epoch == cluster.leader_epoch:
                    self._record(leader.proposals[0])
                    cluster.alter(leader.broker_id, "ok")
                else:
                    cluster.alter(leader.broker_id, "FENCED_LEADER_EPOCH")
            cluster.check_lag(leader.broker_id)
            self._check()
        table = " | ".join(cluster.table())
        assert len({tuple(w.value for w in a.log) for a in cluster.replicas.values()}) == 1, "I20: " + table
        assert leader.state.high_watermark == len(leader.log), "I36: " + table
        assert sorted(leader.state.in_sync_replicas) == [1, 2, 3], "I36: " + table
        values = [w.value for w in leader.log]
        for offset, value in sorted(self.acked.items()):
            assert offset < len(values) and values[offset] == value, (
                f"I21: {value} was acknowledged at {offset}: {table}"
            )
        idempotent = [value for value in values if value.startswith("[")]
        assert len(idempotent) == len(set(idempotent)), "I25: " + table

    def _sync_now(self, replica: CoreReplica) -> None:
        if replica.wants_sync:
            self.cluster.sync(replica.broker_id)


@pytest.mark.invariant("I3", "I4", "I16", "I17", "I19", "I20", "I21", "I24", "I25", "I31", "I36")
def test_invariants_hold_on_random_walks_with_crashes() -> None:
    for seed in range(WALKS):
        try:
            CrashWalk(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
