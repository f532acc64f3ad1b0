"""Random walks over the pure core: any order of messages, clean elections, no lost bytes; the invariants must hold.

The controller here is a few lines, and its state (Z) is the reference: it elects from the ISR, and checks proposals by
leader epoch and partition epoch. The checkers are outside of the core and keep their own record of what was committed.
"""

import os
import random

import pytest

from minibroker.broker.replication.state import AskingEpochEnd, Fetching, ReplicaState, Role
from tests.broker.replication.core_cluster import CoreCluster, CoreReplica

STEPS = 120
WALKS = int(os.environ.get("WALKS", "250"))


class Walk:
    """One seeded walk with its checkers."""

    def __init__(self, seed: int, flush: bool = False) -> None:
        self.random = random.Random(seed)
        self.cluster = CoreCluster(3, min_insync=self.random.choice([1, 2]), flush=flush)
        self.committed: dict[int, tuple[int, str]] = {}
        self.acked: dict[int, str] = {}
        self.serial = 0
        self.highest_high_watermarks: dict[tuple[int, int], int] = {}
        self.cluster.elect(1)

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
            self._check()
        self._settle()

    # ---------------------------------------------------------------------------------------------------- actions
    def _step(self) -> None:
        action = self.random.choices(
            [
                self._produce,
                self._fetch,
                self._ask,
                self._deliver,
                self._elect,
                self._send_any_order,
                self._alter,
                self._lag,
            ],
            weights=[20, 50, 20, 15, 4, 6, 12, 6],
        )[0]
        action()
        self.cluster.pass_time(self.random.choice([0, 1, 500, 4000]))

    def _actor(self) -> CoreReplica:
        return self.cluster.replicas[self.random.choice(self.cluster.assignment)]

    def _produce(self) -> None:
        self.serial += 1
        acks = self.random.choice([-1, -1, 1])
        self.cluster.produce(self._actor().broker_id, f"<{self.serial}>", acks)

    def _fetch(self) -> None:
        replica = self._actor()
        if isinstance(replica.state.phase, Fetching):
            self.cluster.fetch(replica.broker_id, hold=self._hold(), broker_epoch=1)

    def _ask(self) -> None:
        replica = self._actor()
        if isinstance(replica.state.phase, AskingEpochEnd):
            self.cluster.ask(replica.broker_id, hold=self._hold())

    def _hold(self) -> str | None:
        self.serial += 1
        return f"h{self.serial}" if self.random.random() < 0.3 else None

    def _deliver(self) -> None:
        if self.cluster.held:
            name = self.random.choice(sorted(self.cluster.held))
            if self.random.random() < 0.3:
                del self.cluster.held[name]
            else:
                self.cluster.deliver(name)

    def _elect(self) -> None:
        """A clean election: the new leader is a member of Z's ISR, which may lose another member."""
        leader = self.random.choice(self.cluster.isr)
        isr = self.cluster.isr
        if len(isr) > 1 and self.random.random() < 0.4:
            gone = self.random.choice([b for b in isr if b != leader])
            isr = tuple(b for b in isr if b != gone)
        receivers = tuple(b for b in self.cluster.assignment if self.random.random() < 0.7)
        self.cluster.elect(leader, isr, receivers or (leader,))

    def _send_any_order(self) -> None:
        self.cluster.send_order((self._actor().broker_id,))

    def _alter(self) -> None:
        """Z accepts a proposal of its leader epoch and partition epoch; the answer may be lost after the write."""
        cluster = self.cluster
        replica = self._actor()
        if not replica.proposals:
            return
        proposal = replica.proposals[0]
        members = tuple(b for b, _ in proposal.new_isr_with_epochs)
        current = proposal.leader_epoch == cluster.leader_epoch and proposal.partition_epoch == cluster.partition_epoch
        if not current:
            same = sorted(members) == sorted(cluster.isr) and proposal.leader_epoch == cluster.leader_epoch
            if same:
                cluster.partition_epoch -= 1  # equal state is success without a write (KAFKA-14144)
                cluster.alter(replica.broker_id, "ok")
            else:
                cluster.alter(replica.broker_id, "INVALID_UPDATE_VERSION")
        elif self.random.random() < 0.2:
            cluster.isr = members
            cluster.partition_epoch += 1
            cluster.alter(replica.broker_id, "lost")
        else:
            cluster.alter(replica.broker_id, "ok")

    def _lag(self) -> None:
        replica = self._actor()
        self.cluster.check_lag(replica.broker_id)
        if replica.wants_sync:
            self.cluster.sync(replica.broker_id)

    # --------------------------------------------------------------------------------------------------- checkers
    def _check(self) -> None:
        self._check_log_matching()
        for replica in self.cluster.replicas.values():
            self._check_committed(replica)
        leader = self._current_leader()
        if leader is not None:
            self._check_strong_isr(leader)
        self._note_acks()

    def _current_leader(self) -> CoreReplica | None:
        if self.cluster.leader is None:
            return None
        replica = self.cluster.replicas[self.cluster.leader]
        return (
            replica
            if replica.state.role is Role.LEADER and replica.state.leader_epoch == self.cluster.leader_epoch
            else None
        )

    def _check_log_matching(self) -> None:
        """I16: the same (offset, epoch) in two logs means the same bytes there and below."""
        replicas = list(self.cluster.replicas.values())
        for i, one in enumerate(replicas):
            for other in replicas[i + 1 :]:
                shared = min(len(one.log), len(other.log))
                matched = [
                    o
                    for o in range(shared)
                    if one.log[o].header.partition_leader_epoch == other.log[o].header.partition_leader_epoch
                ]
                top = max(matched, default=-1)
                for o in range(top + 1):
                    assert one.log[o].value == other.log[o].value, f"I16 at {o}: {one.row()} | {other.row()}"

    def _check_committed(self, replica: CoreReplica) -> None:
        """I19: a record below any high watermark never changes. I11: a leader's high watermark never falls."""
        state: ReplicaState = replica.state
        for offset in range(state.high_watermark):
            written = replica.log[offset]
            fact = (written.header.partition_leader_epoch, written.value)
            assert self.committed.setdefault(offset, fact) == fact, f"I19 at {offset}: {replica.row()}"
        if state.role is Role.LEADER and state.leader_epoch is not None:
            key = (replica.broker_id, state.leader_epoch)
            assert state.high_watermark >= self.highest_high_watermarks.get(key, 0), f"I11: {replica.row()}"
            self.highest_high_watermarks[key] = state.high_watermark

    def _check_strong_isr(self, leader: CoreReplica) -> None:
        """I3, I4: every member of Z's ISR holds all records below the current leader's high watermark."""
        high_watermark = leader.state.high_watermark
        for member in self.cluster.isr:
            log = self.cluster.replicas[member].log
            assert len(log) >= high_watermark, f"I4: {member} ends at {len(log)}, high watermark {high_watermark}"
            for offset in range(high_watermark):
                assert log[offset].value == leader.log[offset].value, f"I3 at {offset}: {member} differs"

    def _note_acks(self) -> None:
        for line in self.cluster.printed:
            words = line.split()
            if words[1] == "answers" and words[3] == "ok":
                self.acked.setdefault(int(words[4].removeprefix("at=")), words[2])
        self.cluster.printed.clear()

    # --------------------------------------------------------------------------------------------------- liveness
    def _settle(self) -> None:
        """Faults stop: all replicas receive the same order and fetch, and all copies become equal (I20, I36)."""
        cluster = self.cluster
        cluster.held.clear()
        cluster.elect(cluster.isr[0])
        leader = cluster.replicas[cluster.isr[0]]
        for _ in range(6):
            cluster.pass_time(100)
            for broker_id in cluster.assignment:
                if broker_id != leader.broker_id:
                    cluster.follow(broker_id)
                    cluster.fetch(broker_id, broker_epoch=1)
            while leader.proposals:
                is_current = leader.proposals[0].leader_epoch == cluster.leader_epoch
                cluster.alter(leader.broker_id, "ok" if is_current else "FENCED_LEADER_EPOCH")
            cluster.check_lag(leader.broker_id)
            self._check()
        logs = {tuple(w.value for w in a.log) for a in cluster.replicas.values()}
        assert len(logs) == 1, "I20: " + " | ".join(cluster.table())
        assert leader.state.high_watermark == len(leader.log), "I36: " + leader.row()
        assert sorted(leader.state.in_sync_replicas) == [1, 2, 3], "I36: " + leader.row()


@pytest.mark.invariant("I2", "I3", "I4", "I7", "I8", "I11", "I16", "I17", "I19", "I20", "I36")
def test_invariants_hold_on_random_walks() -> None:
    for seed in range(WALKS):
        try:
            Walk(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
