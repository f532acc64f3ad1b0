"""Random walks over the pure core with crashes: killed processes, power losses, late messages of earlier lives.

Here Z also keeps the incarnation of each in-sync replica, as the controller does: whoever was started again leaves the
ISR before it may lead. Bytes are lost only within the promise: another in-sync replica holds them, or they were not
synced while only synced ones count. Idempotent producers retry until they are acknowledged.
"""

import os

import pytest
from msgspec.structs import replace

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.replica import step_fetch
from minibroker.broker.replication.state import AskingEpochEnd, Fetching
from minibroker.protocol.errors import ErrorCode
from tests.broker.replication.stage import Actor
from tests.broker.replication.test_random_walk import Walk

STEPS = 160
WALKS = int(os.environ.get("WALKS", "250"))
PRODUCER_ID = 7


class CrashWalk(Walk):
    """One seeded walk with crashes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, flush=seed % 3 == 0)
        brokers = self.stage.assignment
        self.lives = dict.fromkeys(brokers, 1)
        """Broker epochs: a new one with each start."""
        self.known = dict(self.lives)
        """As the controller knows them."""
        self.recorded = dict(self.lives)
        """Of the in-sync replicas, as Z keeps them."""
        self.weakened: int | None = None
        self.late_fetches: list[tuple[int, int, ev.FollowerFetched]] = []
        self.late_orders: list[tuple[int, int, ev.LeaderAndIsrReceived]] = []
        self.orphans: list[tuple[int, int, ev.ProposeIsr]] = []
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
            self._tell: 8,
            self._alter: 14,
            self._lag: 6,
            self._sync: 25,
            self._bounce: 4,
            self._notice: 10,
        }
        self.random.choices(list(actions), weights=list(actions.values()))[0]()
        self.stage.pass_time(self.random.choice([0, 1, 500, 4000]))

    # ------------------------------------------------------------------------------------------------------ clients
    def _produce(self) -> None:
        self.serial += 1
        acks = self.random.choice([-1, -1, 1])
        value = f"<{self.serial}>"
        self.acks_of[value] = acks
        self.stage.produce(self._actor().broker_id, value, acks)

    def _produce_idempotent(self) -> None:
        """The same record with the same sequence again and again, to whoever leads, until it is acknowledged."""
        value = f"[{self.sequence}]"
        if value in self.acked.values():
            self.sequence += 1
            value = f"[{self.sequence}]"
        self.acks_of[value] = -1
        self.stage.produce(self._actor().broker_id, value, -1, (PRODUCER_ID, 0, self.sequence))

    def _note_acks(self) -> None:
        """I21, I24, I25: an acknowledged record has one place, and was committed when it was acknowledged."""
        for line in self.stage.lines:
            words = line.split()
            if words[1] != "answers" or words[3] != "ok" or self.acks_of[words[2]] != -1:
                continue
            state = self.stage.actors[int(words[0])].state
            offset = int(words[4].removeprefix("at="))
            assert state.high_watermark > offset, f"I24: acknowledged above the mark: {line}"
            assert self.acked.setdefault(offset, words[2]) == words[2], f"I21: two records at {offset}: {line}"
            assert list(self.acked.values()).count(words[2]) == 1, f"I25: {words[2]} has two places"
        self.stage.lines.clear()

    # ---------------------------------------------------------------------------------------------------- followers
    def _fetch(self) -> None:
        actor = self._actor()
        state, stage = actor.state, self.stage
        if not isinstance(state.phase, Fetching):
            return
        if state.config.counts_only_synced and state.synced_end_offset < state.log_end_offset:
            return
        life = self.lives[actor.broker_id]
        assert state.leader_id is not None
        if self.random.random() < 0.2:
            event = ev.FollowerFetched(
                now_ms=stage.now_ms,
                replica_id=actor.broker_id,
                broker_epoch=life,
                current_leader_epoch=state.leader_epoch,
                fetch_offset=state.log_end_offset,
                last_fetched_epoch=state.last_fetched_epoch,
                eligible=True,
                log_start_offset=state.log_start_offset,
            )
            self.late_fetches.append((state.leader_id, self.lives[state.leader_id], event))
        stage.fetch(actor.broker_id, hold=self._hold(), broker_epoch=life)

    def _deliver_late(self) -> None:
        """A request of long ago arrives; its reply finds nobody. No connection outlives the process it leads to."""
        if self.late_fetches and self.random.random() < 0.6:
            leader, life, event = self.late_fetches.pop(self.random.randrange(len(self.late_fetches)))
            if life == self.lives[leader]:
                actor = self.stage.actors[leader]
                _, effects = step_fetch(actor.state, replace(event, now_ms=self.stage.now_ms))
                actor.perform(effects)
        elif self.late_orders:
            broker_id, life, order = self.late_orders.pop(self.random.randrange(len(self.late_orders)))
            if life == self.lives[broker_id]:
                self.stage.actors[broker_id].handle(replace(order, now_ms=self.stage.now_ms))

    def _sync(self) -> None:
        actor = self._actor()
        if actor.wants_sync:
            self.stage.sync(actor.broker_id)

    # --------------------------------------------------------------------------------------------------- controller
    def _is_whole(self, broker_id: int) -> bool:
        return self.recorded.get(broker_id) == self.known[broker_id]

    def _lead(self, leader: int, isr: tuple[int, ...]) -> None:
        """A new epoch in Z, told to some; who is not told may hear of it late. A new life refuses orders to an old."""
        stage = self.stage
        stage.leader, stage.isr = leader, isr
        stage.leader_epoch += 1
        stage.partition_epoch += 1
        self.recorded = {b: self.recorded[b] for b in isr if b in self.recorded}
        self.recorded[leader] = self.known[leader]
        for broker_id in stage.assignment:
            if self.random.random() < 0.75:
                self._tell_one(broker_id)
            elif self.random.random() < 0.5:
                self.late_orders.append((broker_id, self.known[broker_id], self._order()))

    def _order(self) -> ev.LeaderAndIsrReceived:
        stage = self.stage
        return ev.LeaderAndIsrReceived(
            now_ms=stage.now_ms,
            controller_epoch=1,
            leader_id=stage.leader,
            leader_epoch=stage.leader_epoch,
            partition_epoch=stage.partition_epoch,
            in_sync_replicas=stage.isr,
            assignment=stage.assignment,
        )

    def _tell_one(self, broker_id: int) -> None:
        if self.known[broker_id] == self.lives[broker_id]:
            self.stage.tell((broker_id,))

    def _tell(self) -> None:
        self._tell_one(self._actor().broker_id)

    def _elect(self) -> None:
        usable = [b for b in self.stage.isr if self._is_whole(b)]
        if not usable:
            return
        leader = self.random.choice(usable)
        if len(usable) > 1 and not self._hangs_by_a_thread() and self.random.random() < 0.4:
            gone = self.random.choice([b for b in usable if b != leader])
            usable.remove(gone)
        self._lead(leader, tuple(usable))

    def _notice(self) -> None:
        """The controller sees a new registration: down, then up."""
        fresh = [b for b in self.stage.assignment if self.known[b] != self.lives[b]]
        if not fresh:
            return
        broker_id = self.random.choice(fresh)
        self.known[broker_id] = self.lives[broker_id]
        stage = self.stage
        if broker_id in stage.isr:
            whole = tuple(b for b in stage.isr if self._is_whole(b))
            leader = stage.leader if stage.leader in whole else None
            if whole:
                self._lead(leader or self.random.choice(whole), whole)
            else:
                self._lead(broker_id, (broker_id,))
        self._tell_one(broker_id)

    def _alter(self) -> None:
        if self.orphans and self.random.random() < 0.5:
            asker, life, proposal = self.orphans.pop(0)
            if self._judge(asker, life, proposal) is ErrorCode.NONE:
                self._apply(proposal)
            return
        actor = self._actor()
        if not actor.proposals:
            return
        proposal = actor.proposals[0]
        stage = self.stage
        code = self._judge(actor.broker_id, self.lives[actor.broker_id], proposal)
        if code is None:  # fulfilled already: success without a write (KAFKA-14144)
            stage.partition_epoch -= 1
            stage.alter(actor.broker_id, "ok")
        elif code is not ErrorCode.NONE:
            stage.alter(actor.broker_id, code.name)
        elif self.random.random() < 0.2:
            self._apply(proposal)
            stage.alter(actor.broker_id, "lost")
        else:
            self._record(proposal)
            stage.alter(actor.broker_id, "ok")

    def _judge(self, asker: int, life: int, proposal: ev.ProposeIsr) -> ErrorCode | None:
        stage = self.stage
        members = {b for b, _ in proposal.new_isr_with_epochs}
        if life != self.known[asker]:
            return ErrorCode.STALE_BROKER_EPOCH
        if proposal.leader_epoch != stage.leader_epoch or asker != stage.leader:
            return ErrorCode.FENCED_LEADER_EPOCH
        if members == set(stage.isr):
            return None
        if proposal.partition_epoch != stage.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for member, epoch in proposal.new_isr_with_epochs:
            known = epoch == self.known[member] if epoch is not None else member in stage.isr and self._is_whole(member)
            if not known and member != asker:
                return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE

    def _record(self, proposal: ev.ProposeIsr) -> None:
        self.recorded = {b: self.known[b] for b, _ in proposal.new_isr_with_epochs}

    def _apply(self, proposal: ev.ProposeIsr) -> None:
        self._record(proposal)
        self.stage.isr = tuple(b for b, _ in proposal.new_isr_with_epochs)
        self.stage.partition_epoch += 1

    # ------------------------------------------------------------------------------------------------------- crashes
    def _bounce(self) -> None:
        """Killed or without power, and started again before anybody notices."""
        actor, stage = self._actor(), self.stage
        broker_id, state = actor.broker_id, actor.state
        if self._hangs_by_a_thread():
            return
        keep = None
        if self.random.random() < 0.6:
            if not self._may_lose(actor):
                return
            keep = self.random.randint(state.synced_end_offset, state.log_end_offset)
            if not state.config.counts_only_synced:
                self.weakened = broker_id
        if self.random.random() < 0.5:
            life = self.lives[broker_id]
            self.orphans += [(broker_id, life, proposal) for proposal in actor.proposals]
        actor.restart(keep)
        actor.state.high_watermark = self.random.randint(0, actor.state.high_watermark)
        if keep is not None:
            actor.state.synced_end_offset = actor.state.log_end_offset
        self.lives[broker_id] += 1
        stage.held = {name: held for name, held in stage.held.items() if held[0] != broker_id}

    def _hangs_by_a_thread(self) -> bool:
        """Somebody counts, or may yet, for bytes that he has lost: until that is noticed nobody else may fall."""
        lost = self.weakened
        if lost is not None and self.known[lost] == self.lives[lost]:
            self.weakened = None
        return self.weakened is not None

    def _may_lose(self, actor: Actor) -> bool:
        stage, broker_id = self.stage, actor.broker_id
        if actor.state.config.counts_only_synced or broker_id not in stage.isr:
            return True
        others = {b for b in stage.isr if b != broker_id and self.recorded.get(b) == self.lives[b]}
        if stage.config.min_insync_replicas == 1:  # any proposal under way may leave it alone, and nothing was synced
            proposals = [*actor.proposals, *(proposal for asker, _, proposal in self.orphans if asker == broker_id)]
            for proposal in proposals:
                others &= {b for b, _ in proposal.new_isr_with_epochs}
        if others:
            return True
        is_safe_alone = stage.isr == (broker_id,) and self._true_leader() is actor and not actor.wants_sync
        return is_safe_alone and stage.config.min_insync_replicas > 1

    def _check_strong_isr(self, leader: Actor) -> None:
        """I3, I4, of the members that are what Z says they are."""
        isr = self.stage.isr
        self.stage.isr = tuple(b for b in isr if self.recorded.get(b) == self.lives[b])
        try:
            super()._check_strong_isr(leader)
        finally:
            self.stage.isr = isr

    # --------------------------------------------------------------------------------------------------- liveness
    def _settle(self) -> None:
        """Faults stop: all copies become equal, and hold all that was acknowledged (I20, I21, I25, I36)."""
        stage = self.stage
        stage.held.clear()
        while any(self.known[b] != self.lives[b] for b in stage.assignment):
            self._notice()
        leader = stage.actors[next(b for b in stage.isr if self._is_whole(b))]
        self._lead(leader.broker_id, tuple(b for b in stage.isr if self._is_whole(b)))
        stage.tell(stage.assignment)
        for _ in range(8):
            stage.pass_time(100)
            for broker_id, actor in stage.actors.items():
                self._sync_now(actor)
                if isinstance(actor.state.phase, AskingEpochEnd):
                    stage.follow(broker_id)
                self._sync_now(actor)
                if actor is not leader:
                    stage.fetch(broker_id, broker_epoch=self.lives[broker_id])
                self._sync_now(actor)
            while leader.proposals:
                if leader.proposals[0].leader_epoch == stage.leader_epoch:
                    self._record(leader.proposals[0])
                    stage.alter(leader.broker_id, "ok")
                else:
                    stage.alter(leader.broker_id, "FENCED_LEADER_EPOCH")
            stage.check_lag(leader.broker_id)
            self._check()
        table = " | ".join(stage.table())
        assert len({tuple(w.value for w in a.log) for a in stage.actors.values()}) == 1, "I20: " + table
        assert leader.state.high_watermark == len(leader.log), "I36: " + table
        assert sorted(leader.state.in_sync_replicas) == [1, 2, 3], "I36: " + table
        values = [w.value for w in leader.log]
        for offset, value in sorted(self.acked.items()):
            assert offset < len(values) and values[offset] == value, (
                f"I21: {value} was acknowledged at {offset}: {table}"
            )
        idempotent = [value for value in values if value.startswith("[")]
        assert len(idempotent) == len(set(idempotent)), "I25: " + table

    def _sync_now(self, actor: Actor) -> None:
        if actor.wants_sync:
            self.stage.sync(actor.broker_id)


@pytest.mark.invariant("I3", "I4", "I16", "I17", "I19", "I20", "I21", "I24", "I25", "I31", "I36")
def test_invariants_hold_on_random_walks_with_crashes() -> None:
    for seed in range(WALKS):
        try:
            CrashWalk(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
