"""Fault sequences around a leader and its followers: tails, quick elections, power cuts, late or lost replies.

Owns: the sequences. Each step looks at the cluster first and is left out where it no longer fits, so that sequences may
overlap with each other and with single faults. Leaves to others: what the promise allows (`fault_injector`).
"""

import asyncio

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.faults.fault_injector import name_of
from minibroker.simulation.swarm.faults.sequence_steps import SequenceSteps


class LeaderSequences(SequenceSteps):
    """Each public method is one sequence."""

    # -------------------------------------------------------------------------------------------------------- tails
    async def tail(self, partition: TopicPartition | None = None, way: str | None = None) -> None:
        """The leader fails with records that no other replica has; another leads; the old one returns and truncates."""
        injector = self.injector
        partition = partition or injector.partition()
        leader, epoch = injector.leader(partition), self._epoch(partition)
        if leader is None or not await self._leave_tail(partition, leader, self.random.randint(1, 3)):
            return
        if self._end_leader(leader, way) and await self._elected(partition, epoch):
            injector.workload.burst(partition, 1)
            await self._start_later(leader)

    async def tails(self) -> None:
        """One leader after the other fails with a tail of its own: each log ends in an epoch that the others lack."""
        partition = self.injector.partition()
        for _ in range(self.random.randint(2, 3)):
            leader, epoch = self.injector.leader(partition), self._epoch(partition)
            if leader is None or not await self._leave_tail(partition, leader, 1):
                return
            if not self._end_leader(leader, "bounce") or not await self._elected(partition, epoch):
                return

    async def chase(self) -> None:
        """Each new leader fails as soon as it is elected."""
        partition = self.injector.partition()
        await self.all_in_sync(partition)
        failed = []
        way = self.random.choice(("bounce", "kill"))
        for _ in range(2):
            leader, epoch = self.injector.leader(partition), self._epoch(partition)
            if leader is None or not self._end_leader(leader, way):
                break
            failed.append(leader)
            if not await self._elected(partition, epoch):
                break
            await asyncio.sleep(self.random.choice((0.0, 0.005, 0.05)))
        for broker_id in failed:
            await self._start_later(broker_id)

    async def quiet_elections(self) -> None:
        """Leaders change while no producer writes; one of them may have left a tail before."""
        injector, partition = self.injector, self.injector.partition()
        if self.random.random() < 0.5:
            await self.tail(partition)
        injector.workload.quiet_until[partition] = injector.world.loop.elapsed + 4.0
        for _ in range(self.random.randint(2, 3)):
            leader, epoch = injector.leader(partition), self._epoch(partition)
            if leader is None or not self._end_leader(leader, "bounce") or not await self._elected(partition, epoch):
                break
            await asyncio.sleep(self.random.uniform(0.0, 0.6))
        injector.workload.quiet_until.pop(partition, None)
        injector.workload.burst(partition, 2)

    async def kill_in_turn(self) -> None:
        """All replicas are killed, one after the other, and return in any order."""
        order = self.random.sample(self.injector.cluster.broker_ids, len(self.injector.cluster.broker_ids))
        for broker_id in order:
            self.injector.kill(broker_id)
            await asyncio.sleep(self.random.choice((0.0, 0.05, self.injector.options.session_seconds + 0.6)))
        for broker_id in self.random.sample(order, len(order)):
            await self._start_later(broker_id)

    # ---------------------------------------------------------------------------------------------------- followers
    async def bounce_then_kill(self) -> None:
        """A follower is bounced right after an acknowledgement, and soon the leader fails, too."""
        injector, partition = self.injector, self.injector.partition()
        leader = injector.leader(partition)
        followers = [b for b in self._members(partition) if b != leader]
        if leader is None or not followers:
            return
        before = injector.workload.acknowledged.total()
        injector.workload.burst(partition, 2, acks="all")
        await injector.wait(lambda: injector.workload.acknowledged.total() > before, 0.5)
        if injector.bounce(self.random.choice(followers)):
            await asyncio.sleep(self.random.choice((0.0, 0.02, 0.1, 0.4)))
            if self._end_leader(leader):
                await self._start_later(leader)

    async def rejoin_without_tail(self) -> None:
        """A follower loses power and is back at once; the leader, maybe also controller, fails before it catches up."""
        injector, partition = self.injector, self.injector.partition()
        leader = injector.leader(partition)
        followers = [b for b in self._members(partition) if b != leader]
        if leader is None or not followers:
            return
        injector.workload.burst(partition, 3, acks="all")
        await asyncio.sleep(self.random.choice((0.02, 0.1)))
        victim = self.random.choice(followers)
        if not injector.cut_power({victim}):
            return
        injector.start(victim)
        await injector.wait(lambda: not injector.has_weakened_broker(), 2.0)
        await asyncio.sleep(self.random.choice((0.0, 0.01, 0.1)))
        self._end_leader(leader, "kill")
        await self._start_later(leader)

    async def slow_follower(self) -> None:
        """A follower is cut off or paused while much is written, and retention may delete what it lacks."""
        injector, partition = self.injector, self.injector.partition()
        leader = injector.leader(partition)
        if leader is None:
            return
        victim = self.random.choice(injector.others(leader))
        seconds = self.random.uniform(0.3, 2.5)
        if self.random.random() < 0.5:
            injector.cut_off(victim, injector.others(victim), seconds)
        else:
            injector.pause(victim, seconds)
        for _ in range(6):
            injector.workload.burst(partition, 8)
            await asyncio.sleep(seconds / 6)
        if self.random.random() < 0.5:
            await asyncio.sleep(self.random.choice((0.0, 0.05, 0.3)))
            self._end_leader(leader)

    async def shrink_and_fall(self) -> None:
        """The ISR shrinks to the leader, writes with acks=1 go on and may be read, then the leader fails."""
        injector, partition = self.injector, self.injector.partition()
        leader = injector.leader(partition)
        if leader is None:
            return
        state = injector.state(partition)
        injector.cut_off(leader, injector.others(leader), injector.options.lag_seconds * 2 + 1.5)
        alone = await injector.wait(
            lambda: (state := injector.state(partition)) is not None and len(state.members) == 1,
            injector.options.lag_seconds * 1.5 + 0.5,
        )
        injector.workload.burst(partition, 3)
        if state is None or not alone:
            return
        await asyncio.sleep(self.random.choice((0.05, 0.5, 2.1)))
        injector.workload.burst(partition, 2, acks="all")
        if self._end_leader(leader, self.random.choice(("power bounce", "bounce", "kill"))):
            await self._start_later(leader)

    async def power_twice(self) -> None:
        """A broker loses power, and again while it recovers."""
        victim = self.injector.broker()
        for _ in range(2):
            if not self.injector.cut_power({victim}):
                break
            self.injector.start(victim)
            if not self.injector.options.flushes:
                await self.injector.wait(lambda: not self.injector.has_weakened_broker(), 2.0)
            await asyncio.sleep(self.random.choice((0.001, 0.003, 0.01, 0.1)))
        self.injector.start(victim)

    # ------------------------------------------------------------------------------------------------- late messages
    async def late_replies(self) -> None:
        """A leader's replies to its followers are late, across elections."""
        injector, partition = self.injector, self.injector.partition()
        leader, epoch = injector.leader(partition), self._epoch(partition)
        if leader is None:
            return
        for other in injector.others(leader):
            injector.slow(name_of(leader), name_of(other), self.random.choice((0.1, 0.4, 0.8)), 2.5)
        injector.workload.burst(partition, 2)
        await asyncio.sleep(self.random.uniform(0.0, 0.3))
        victim = leader if self.random.random() < 0.4 else self.random.choice(injector.others(leader))
        if injector.bounce(victim) and victim == leader and await self._elected(partition, epoch):
            injector.workload.burst(partition, 1)
            second = injector.leader(partition)
            if second is not None:
                await asyncio.sleep(self.random.uniform(0.0, 0.4))
                injector.bounce(second)

    async def paused_leader(self) -> None:
        """A leader is paused beyond its session, and resumes with requests in its queue."""
        injector, partition = self.injector, self.injector.partition()
        leader, epoch = injector.leader(partition), self._epoch(partition)
        if leader is None:
            return
        injector.workload.burst(partition, 3)
        if injector.pause(leader, injector.options.session_seconds + self.random.uniform(0.2, 1.5)):
            injector.workload.burst(partition, 3)
            if await self._elected(partition, epoch):
                injector.workload.burst(partition, 2)

    async def replies_lost_in_flight(self) -> None:
        """Many batches are in flight, their replies are lost, and the leader may change."""
        injector, partition = self.injector, self.injector.partition()
        for _ in range(3):
            leader, epoch = injector.leader(partition), self._epoch(partition)
            if leader is None:
                return
            slow_seconds = self.random.choice((0.02, 0.1))
            injector.slow(name_of(leader), "client", slow_seconds, 0.6)
            for _ in range(7):
                injector.workload.burst(partition, 1, acks="all")
                await asyncio.sleep(0.004)
            injector.note("reset", name_of(leader), "client")
            injector.network.reset_connections(name_of(leader), "client")
            await asyncio.sleep(self.random.uniform(0.0, 0.05))
            if self.random.random() < 0.5 and self._end_leader(leader, "bounce"):
                await self._elected(partition, epoch)
