"""Orders of several faults, one method each, named as `options` names them: what real bugs needed to show.

Owns: the orders. Each step looks at the cluster first and is left out where it no longer fits, so that plots may
overlap with each other and with single faults. Refuses to judge what the promise allows (`hand`).
"""

import asyncio

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.hand import Hand, name_of

TAIL_SECONDS = 0.3
"""A cut this long leaves a leader records that nobody else has, and is too short for its followers to lag."""
GRACE_SECONDS = 1.5
"""Beyond a session's end: ZooKeeper's tick, the controller's work, the way to the brokers."""


class Plots:
    """Each method is one plot."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand
        self.random = hand.random

    # ------------------------------------------------------------------------------------------------------ phrases
    async def _elected(self, partition: TopicPartition, old_epoch: int) -> bool:
        """A later leader is in office, by ZooKeeper's word."""

        def is_done() -> bool:
            state = self.hand.state(partition)
            return state is not None and state.leader_epoch > old_epoch and state.leader != -1

        return await self.hand.wait(is_done, self.hand.options.session_seconds + GRACE_SECONDS)

    def _epoch(self, partition: TopicPartition) -> int:
        state = self.hand.state(partition)
        return 0 if state is None else state.leader_epoch

    def _members(self, partition: TopicPartition) -> list[int]:
        """In sync and alive."""
        state = self.hand.state(partition)
        return [] if state is None else [b for b in state.members if self.hand.is_alive(b)]

    async def whole(self, partition: TopicPartition, seconds: float = 3.0) -> bool:
        """All replicas in sync: only then an order of faults starts where it is meant to."""
        replicas = self.hand.options.topics[partition.topic][1]
        return await self.hand.wait(lambda: len(self._members(partition)) == replicas, seconds)

    def _end_leader(self, leader: int, way: str | None = None) -> bool:
        """One way or the other."""
        hand, way = self.hand, way or self.random.choice(("bounce", "kill", "power", "power bounce"))
        if way.startswith("power") and hand.cut_power({leader}):
            if way == "power bounce":
                hand.start(leader)
            return True
        return hand.bounce(leader) if way.endswith("bounce") else hand.kill(leader)

    async def _leave_tail(self, partition: TopicPartition, leader: int, records: int) -> bool:
        """The leader has records that nobody else has."""
        hand = self.hand
        others = hand.others(leader)
        hand.cut_off(leader, others, TAIL_SECONDS)
        hand.workload.burst(partition, records, acks=1)
        hand.workload.burst(partition, 1, acks="all")
        return await hand.wait(
            lambda: hand.log_end(leader, partition) > max(hand.log_end(b, partition) for b in others), TAIL_SECONDS
        )

    async def _start_later(self, broker_id: int) -> None:
        await asyncio.sleep(self.random.uniform(0.0, 0.5))
        self.hand.start(broker_id)

    # -------------------------------------------------------------------------------------------------------- tails
    async def tail(self, partition: TopicPartition | None = None, way: str | None = None) -> None:
        """The leader falls with records that nobody else has, another leads, the old one returns and must cut."""
        hand = self.hand
        partition = partition or hand.partition()
        leader, epoch = hand.leader(partition), self._epoch(partition)
        if leader is None or not await self._leave_tail(partition, leader, self.random.randint(1, 3)):
            return
        if self._end_leader(leader, way) and await self._elected(partition, epoch):
            hand.workload.burst(partition, 1)
            await self._start_later(leader)

    async def tails(self) -> None:
        """One leader after the other falls with a tail of its own: each log ends in an epoch that others lack."""
        partition = self.hand.partition()
        for _ in range(self.random.randint(2, 3)):
            leader, epoch = self.hand.leader(partition), self._epoch(partition)
            if leader is None or not await self._leave_tail(partition, leader, 1):
                return
            if not self._end_leader(leader, "bounce") or not await self._elected(partition, epoch):
                return

    async def chase(self) -> None:
        """Each new leader falls as soon as it is elected."""
        partition = self.hand.partition()
        await self.whole(partition)
        fallen = []
        way = self.random.choice(("bounce", "kill"))
        for _ in range(2):
            leader, epoch = self.hand.leader(partition), self._epoch(partition)
            if leader is None or not self._end_leader(leader, way):
                break
            fallen.append(leader)
            if not await self._elected(partition, epoch):
                break
            await asyncio.sleep(self.random.choice((0.0, 0.005, 0.05)))
        for broker_id in fallen:
            await self._start_later(broker_id)

    async def quiet_elections(self) -> None:
        """Leaders come and go while nobody writes; one left a tail before."""
        hand, partition = self.hand, self.hand.partition()
        if self.random.random() < 0.5:
            await self.tail(partition)
        hand.workload.quiet_until[partition] = hand.world.loop.elapsed + 4.0
        for _ in range(self.random.randint(2, 3)):
            leader, epoch = hand.leader(partition), self._epoch(partition)
            if leader is None or not self._end_leader(leader, "bounce") or not await self._elected(partition, epoch):
                break
            await asyncio.sleep(self.random.uniform(0.0, 0.6))
        hand.workload.quiet_until.pop(partition, None)
        hand.workload.burst(partition, 2)

    async def kill_in_turn(self) -> None:
        """All replicas fall, one after the other, and return in any order."""
        order = self.random.sample(self.hand.cluster.broker_ids, len(self.hand.cluster.broker_ids))
        for broker_id in order:
            self.hand.kill(broker_id)
            await asyncio.sleep(self.random.choice((0.0, 0.05, self.hand.options.session_seconds + 0.6)))
        for broker_id in self.random.sample(order, len(order)):
            await self._start_later(broker_id)

    # ---------------------------------------------------------------------------------------------------- followers
    async def bounce_then_kill(self) -> None:
        """A follower is bounced right after an acknowledgement, and the leader falls at once."""
        hand, partition = self.hand, self.hand.partition()
        leader = hand.leader(partition)
        followers = [b for b in self._members(partition) if b != leader]
        if leader is None or not followers:
            return
        before = hand.workload.acknowledged.total()
        hand.workload.burst(partition, 2, acks="all")
        await hand.wait(lambda: hand.workload.acknowledged.total() > before, 0.5)
        if hand.bounce(self.random.choice(followers)):
            await asyncio.sleep(self.random.choice((0.0, 0.02, 0.1, 0.4)))
            if self._end_leader(leader):
                await self._start_later(leader)

    async def rejoin_without_tail(self) -> None:
        """A follower loses power and is back at once; the leader, and maybe the controller, fall before it has caught
        up."""
        hand, partition = self.hand, self.hand.partition()
        leader = hand.leader(partition)
        followers = [b for b in self._members(partition) if b != leader]
        if leader is None or not followers:
            return
        hand.workload.burst(partition, 3, acks="all")
        await asyncio.sleep(self.random.choice((0.02, 0.1)))
        victim = self.random.choice(followers)
        if not hand.cut_power({victim}):
            return
        hand.start(victim)
        await hand.wait(lambda: not hand.hangs_by_a_thread(), 2.0)
        await asyncio.sleep(self.random.choice((0.0, 0.01, 0.1)))
        self._end_leader(leader, "kill")
        await self._start_later(leader)

    async def slow_follower(self) -> None:
        """A follower hears nothing for a while; much is written, and retention deletes what it lacks."""
        hand, partition = self.hand, self.hand.partition()
        leader = hand.leader(partition)
        if leader is None:
            return
        victim = self.random.choice(hand.others(leader))
        seconds = self.random.uniform(0.3, 2.5)
        if self.random.random() < 0.5:
            hand.cut_off(victim, hand.others(victim), seconds)
        else:
            hand.pause(victim, seconds)
        for _ in range(6):
            hand.workload.burst(partition, 8)
            await asyncio.sleep(seconds / 6)
        if self.random.random() < 0.5:
            await asyncio.sleep(self.random.choice((0.0, 0.05, 0.3)))
            self._end_leader(leader)

    async def shrink_and_fall(self) -> None:
        """The ISR shrinks to the leader, acks=1 goes on and is read, the leader falls."""
        hand, partition = self.hand, self.hand.partition()
        leader = hand.leader(partition)
        if leader is None:
            return
        state = hand.state(partition)
        hand.cut_off(leader, hand.others(leader), hand.options.lag_seconds * 2 + 1.5)
        alone = await hand.wait(
            lambda: (state := hand.state(partition)) is not None and len(state.members) == 1,
            hand.options.lag_seconds * 1.5 + 0.5,
        )
        hand.workload.burst(partition, 3)
        if state is None or not alone:
            return
        await asyncio.sleep(self.random.choice((0.05, 0.5, 2.1)))
        hand.workload.burst(partition, 2, acks="all")
        if self._end_leader(leader, self.random.choice(("power bounce", "bounce", "kill"))):
            await self._start_later(leader)

    async def power_twice(self) -> None:
        """A broker loses power, and again while it recovers."""
        victim = self.hand.broker()
        for _ in range(2):
            if not self.hand.cut_power({victim}):
                break
            self.hand.start(victim)
            if not self.hand.options.flushes:
                await self.hand.wait(lambda: not self.hand.hangs_by_a_thread(), 2.0)
            await asyncio.sleep(self.random.choice((0.001, 0.003, 0.01, 0.1)))
        self.hand.start(victim)

    # --------------------------------------------------------------------------------------------------- late words
    async def late_replies(self) -> None:
        """What a leader sends to a follower is late, across elections."""
        hand, partition = self.hand, self.hand.partition()
        leader, epoch = hand.leader(partition), self._epoch(partition)
        if leader is None:
            return
        for other in hand.others(leader):
            hand.slow(name_of(leader), name_of(other), self.random.choice((0.1, 0.4, 0.8)), 2.5)
        hand.workload.burst(partition, 2)
        await asyncio.sleep(self.random.uniform(0.0, 0.3))
        victim = leader if self.random.random() < 0.4 else self.random.choice(hand.others(leader))
        if hand.bounce(victim) and victim == leader and await self._elected(partition, epoch):
            hand.workload.burst(partition, 1)
            second = hand.leader(partition)
            if second is not None:
                await asyncio.sleep(self.random.uniform(0.0, 0.4))
                hand.bounce(second)

    async def paused_leader(self) -> None:
        """A leader sleeps over its own end, and wakes up with work in its queue."""
        hand, partition = self.hand, self.hand.partition()
        leader, epoch = hand.leader(partition), self._epoch(partition)
        if leader is None:
            return
        hand.workload.burst(partition, 3)
        if hand.pause(leader, hand.options.session_seconds + self.random.uniform(0.2, 1.5)):
            hand.workload.burst(partition, 3)
            if await self._elected(partition, epoch):
                hand.workload.burst(partition, 2)

    async def replies_lost_in_flight(self) -> None:
        """Many batches are in flight, their answers are lost, and the leader changes."""
        hand, partition = self.hand, self.hand.partition()
        for _ in range(3):
            leader, epoch = hand.leader(partition), self._epoch(partition)
            if leader is None:
                return
            slow_seconds = self.random.choice((0.02, 0.1))
            hand.slow(name_of(leader), "client", slow_seconds, 0.6)
            for _ in range(7):
                hand.workload.burst(partition, 1, acks="all")
                await asyncio.sleep(0.004)
            hand.note("reset", name_of(leader), "client")
            hand.network.reset_connections(name_of(leader), "client")
            await asyncio.sleep(self.random.uniform(0.0, 0.05))
            if self.random.random() < 0.5 and self._end_leader(leader, "bounce"):
                await self._elected(partition, epoch)
