"""Random walks over the pure core: any order of messages, clean elections, no lost bytes; the invariants must hold.

The controller here is a few lines of truth (Z): it elects from the ISR, and judges proposals by epoch and version. The
checkers live outside the core and keep their own record of what was committed.
"""

import os
import random

import pytest

from minibroker.broker.replication.state import AskingEpochEnd, Fetching, ReplicaState, Role
from tests.broker.replication.stage import Actor, Stage

STEPS = 120
WALKS = int(os.environ.get("WALKS", "250"))


class Walk:
    """One seeded walk with its checkers."""

    def __init__(self, seed: int, flush: bool = False) -> None:
        self.random = random.Random(seed)
        self.stage = Stage(3, min_insync=self.random.choice([1, 2]), flush=flush)
        self.committed: dict[int, tuple[int, str]] = {}
        self.acked: dict[int, str] = {}
        self.serial = 0
        self.highest_marks: dict[tuple[int, int], int] = {}
        self.stage.elect(1)

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
            self._check()
        self._settle()

    # ---------------------------------------------------------------------------------------------------- actions
    def _step(self) -> None:
        action = self.random.choices(
            [self._produce, self._fetch, self._ask, self._deliver, self._elect, self._tell, self._alter, self._lag],
            weights=[20, 50, 20, 15, 4, 6, 12, 6],
        )[0]
        action()
        self.stage.pass_time(self.random.choice([0, 1, 500, 4000]))

    def _actor(self) -> Actor:
        return self.stage.actors[self.random.choice(self.stage.assignment)]

    def _produce(self) -> None:
        self.serial += 1
        acks = self.random.choice([-1, -1, 1])
        self.stage.produce(self._actor().broker_id, f"<{self.serial}>", acks)

    def _fetch(self) -> None:
        actor = self._actor()
        if isinstance(actor.state.phase, Fetching):
            self.stage.fetch(actor.broker_id, hold=self._hold(), broker_epoch=1)

    def _ask(self) -> None:
        actor = self._actor()
        if isinstance(actor.state.phase, AskingEpochEnd):
            self.stage.ask(actor.broker_id, hold=self._hold())

    def _hold(self) -> str | None:
        self.serial += 1
        return f"h{self.serial}" if self.random.random() < 0.3 else None

    def _deliver(self) -> None:
        if self.stage.held:
            name = self.random.choice(sorted(self.stage.held))
            if self.random.random() < 0.3:
                del self.stage.held[name]
            else:
                self.stage.deliver(name)

    def _elect(self) -> None:
        """Clean: the new leader is a member of the true ISR, which may lose another member."""
        leader = self.random.choice(self.stage.isr)
        isr = self.stage.isr
        if len(isr) > 1 and self.random.random() < 0.4:
            gone = self.random.choice([b for b in isr if b != leader])
            isr = tuple(b for b in isr if b != gone)
        told = tuple(b for b in self.stage.assignment if self.random.random() < 0.7)
        self.stage.elect(leader, isr, told or (leader,))

    def _tell(self) -> None:
        self.stage.tell((self._actor().broker_id,))

    def _alter(self) -> None:
        """Z judges: of this reign, of this version; the answer may be lost after the write."""
        stage = self.stage
        actor = self._actor()
        if not actor.proposals:
            return
        proposal = actor.proposals[0]
        members = tuple(b for b, _ in proposal.new_isr_with_epochs)
        current = proposal.leader_epoch == stage.leader_epoch and proposal.partition_epoch == stage.partition_epoch
        if not current:
            same = sorted(members) == sorted(stage.isr) and proposal.leader_epoch == stage.leader_epoch
            if same:
                stage.partition_epoch -= 1  # equal state is success without a write (KAFKA-14144)
                stage.alter(actor.broker_id, "ok")
            else:
                stage.alter(actor.broker_id, "INVALID_UPDATE_VERSION")
        elif self.random.random() < 0.2:
            stage.isr = members
            stage.partition_epoch += 1
            stage.alter(actor.broker_id, "lost")
        else:
            stage.alter(actor.broker_id, "ok")

    def _lag(self) -> None:
        actor = self._actor()
        self.stage.check_lag(actor.broker_id)
        if actor.wants_sync:
            self.stage.sync(actor.broker_id)

    # --------------------------------------------------------------------------------------------------- checkers
    def _check(self) -> None:
        self._check_log_matching()
        for actor in self.stage.actors.values():
            self._check_committed(actor)
        leader = self._true_leader()
        if leader is not None:
            self._check_strong_isr(leader)
        self._note_acks()

    def _true_leader(self) -> Actor | None:
        if self.stage.leader is None:
            return None
        actor = self.stage.actors[self.stage.leader]
        return (
            actor if actor.state.role is Role.LEADER and actor.state.leader_epoch == self.stage.leader_epoch else None
        )

    def _check_log_matching(self) -> None:
        """I16: the same (offset, epoch) in two logs means the same bytes there and below."""
        actors = list(self.stage.actors.values())
        for i, one in enumerate(actors):
            for other in actors[i + 1 :]:
                shared = min(len(one.log), len(other.log))
                matched = [
                    o
                    for o in range(shared)
                    if one.log[o].header.partition_leader_epoch == other.log[o].header.partition_leader_epoch
                ]
                top = max(matched, default=-1)
                for o in range(top + 1):
                    assert one.log[o].value == other.log[o].value, f"I16 at {o}: {one.row()} | {other.row()}"

    def _check_committed(self, actor: Actor) -> None:
        """I19: what a mark once covered is the same under every later mark. I11: a leader's mark never falls."""
        state: ReplicaState = actor.state
        for offset in range(state.high_watermark):
            written = actor.log[offset]
            fact = (written.header.partition_leader_epoch, written.value)
            assert self.committed.setdefault(offset, fact) == fact, f"I19 at {offset}: {actor.row()}"
        if state.role is Role.LEADER and state.leader_epoch is not None:
            key = (actor.broker_id, state.leader_epoch)
            assert state.high_watermark >= self.highest_marks.get(key, 0), f"I11: {actor.row()}"
            self.highest_marks[key] = state.high_watermark

    def _check_strong_isr(self, leader: Actor) -> None:
        """I3, I4: every member of Z's ISR holds all that the true leader's mark covers."""
        mark = leader.state.high_watermark
        for member in self.stage.isr:
            log = self.stage.actors[member].log
            assert len(log) >= mark, f"I4: {member} ends at {len(log)}, the mark is {mark}"
            for offset in range(mark):
                assert log[offset].value == leader.log[offset].value, f"I3 at {offset}: {member} differs"

    def _note_acks(self) -> None:
        for line in self.stage.lines:
            words = line.split()
            if words[1] == "answers" and words[3] == "ok":
                self.acked.setdefault(int(words[4].removeprefix("at=")), words[2])
        self.stage.lines.clear()

    # --------------------------------------------------------------------------------------------------- liveness
    def _settle(self) -> None:
        """Faults stop: everybody hears the same, fetches, and all copies become equal (I20, I36)."""
        stage = self.stage
        stage.held.clear()
        stage.elect(stage.isr[0])
        leader = stage.actors[stage.isr[0]]
        for _ in range(6):
            stage.pass_time(100)
            for broker_id in stage.assignment:
                if broker_id != leader.broker_id:
                    stage.follow(broker_id)
                    stage.fetch(broker_id, broker_epoch=1)
            while leader.proposals:
                is_current = leader.proposals[0].leader_epoch == stage.leader_epoch
                stage.alter(leader.broker_id, "ok" if is_current else "FENCED_LEADER_EPOCH")
            stage.check_lag(leader.broker_id)
            self._check()
        logs = {tuple(w.value for w in a.log) for a in stage.actors.values()}
        assert len(logs) == 1, "I20: " + " | ".join(stage.table())
        assert leader.state.high_watermark == len(leader.log), "I36: " + leader.row()
        assert sorted(leader.state.in_sync_replicas) == [1, 2, 3], "I36: " + leader.row()


@pytest.mark.invariant("I2", "I3", "I4", "I7", "I8", "I11", "I16", "I17", "I19", "I20", "I36")
def test_invariants_hold_on_random_walks() -> None:
    for seed in range(WALKS):
        try:
            Walk(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
