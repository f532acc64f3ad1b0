"""Fault sequences that make logs diverge in a certain way: it matters which replica has which record of which epoch.

Owns: the sequences; see `leader_sequences`.
"""

import asyncio

from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import ApiKey
from minibroker.protocol.znodes import TopicAssignment, topic_path
from minibroker.simulation.swarm.faults.fault_injector import name_of
from minibroker.simulation.swarm.faults.sequence_steps import TAIL_SECONDS, SequenceSteps
from minibroker.simulation.world.message_holds import requests, responses


class DivergenceSequences(SequenceSteps):
    """Each public method is one sequence."""

    def _next_leader(self, partition: TopicPartition, leader: int) -> int | None:
        """The broker that is elected if the leader fails: the first of the assignment that is in sync and alive."""
        node = self.injector.zookeeper.tree.nodes.get(topic_path(partition.topic))
        replicas = [] if node is None else TopicAssignment.decode(node.data).partitions[str(partition.partition)]
        members = self._members(partition)
        return next((b for b in replicas if b in members and b != leader), None)

    async def _settle(self, partition: TopicPartition, seconds: float) -> bool:
        """Producers pause for a while, and all replicas reach the same end."""
        injector = self.injector
        injector.workload.quiet_until[partition] = injector.world.loop.elapsed + seconds

        def is_settled() -> bool:
            states = [r.state for b in injector.cluster.broker_ids if (r := injector.replica(b, partition)) is not None]
            return len({(state.log_end_offset, state.high_watermark) for state in states}) == 1

        return await injector.wait(is_settled, 1.0)

    async def _leave_tail_on_some(self, partition: TopicPartition, leader: int, uninformed: int) -> bool:
        """Records that all but one follower have."""
        injector = self.injector
        injector.cut_off(uninformed, [leader], TAIL_SECONDS)
        injector.workload.burst(partition, self.random.randint(1, 2))
        hearing = [b for b in injector.others(leader) if b != uninformed and injector.replica(b, partition) is not None]
        end = injector.log_end(uninformed, partition)
        return await injector.wait(lambda: any(injector.log_end(b, partition) > end for b in hearing), TAIL_SECONDS)

    async def forked_tails(self) -> None:
        """Two replicas have a record of one epoch; the third leads without it, writes its own, then fails, too."""
        injector, partition = self.injector, self.injector.partition()
        if self.random.random() < 0.7:  # so that one replica has no record of the diverging epoch
            await self._settle(partition, 4.0)
            first, epoch = injector.leader(partition), self._epoch(partition)
            if first is None or not self._end_leader(first, "bounce") or not await self._elected(partition, epoch):
                return
        await self.all_in_sync(partition)
        leader, epoch = injector.leader(partition), self._epoch(partition)
        if leader is None:
            return
        uninformed = self._next_leader(partition, leader)
        if uninformed is None or not await self._leave_tail_on_some(partition, leader, uninformed):
            return
        if not self._end_leader(leader, "bounce") or not await self._elected(partition, epoch):
            return
        second, epoch = injector.leader(partition), self._epoch(partition)
        if second is not None and await self._leave_tail(partition, second, 1):
            self._end_leader(second, "bounce")
            await self._elected(partition, epoch)
        injector.workload.quiet_until.pop(partition, None)

    async def missed_leader_epoch(self) -> None:
        """A follower misses a whole leader epoch: its leader is replaced, leads again, and has other records."""
        injector, partition = self.injector, self.injector.partition()
        await self.all_in_sync(partition)
        leader, controller, epoch = injector.leader(partition), injector.cluster.controller(), self._epoch(partition)
        if leader is None or controller is None:
            return
        next_leader = self._next_leader(partition, leader)
        uninformed = next((b for b in self._members(partition) if b not in (leader, next_leader)), None)
        if next_leader is None or uninformed is None or uninformed == controller:
            return
        if self.random.random() < 0.7:
            await self._leave_tail_on_some(partition, leader, next_leader)
        injector.note("holds orders to", uninformed)
        hold = injector.network.hold(None, name_of(uninformed), requests(ApiKey.LEADER_AND_ISR))
        with injector.uninformed(uninformed):
            if self._end_leader(leader, "bounce") and await self._elected(partition, epoch):
                injector.workload.burst(partition, 1)
                await injector.wait(lambda: leader in self._members(partition), 2.0)
                self._end_leader(next_leader, "bounce")
                await self._elected(partition, epoch + 1)
                injector.workload.burst(partition, 1)
                await asyncio.sleep(self.random.uniform(0.0, 0.3))
            self._release(hold)

    async def lagging_high_watermark(self) -> None:
        """A new leader's high watermark lags behind what was acknowledged, and a replica that was down rejoins."""
        injector, partition = self.injector, self.injector.partition()
        leader, epoch = injector.leader(partition), self._epoch(partition)
        if leader is None or not await self._settle(partition, 5.0):
            return
        away = self.random.choice(injector.others(leader))
        pairs = injector.cut_off(away, injector.others(away), 4.0)
        if not injector.bounce(away) or not await injector.wait(lambda: away not in self._members(partition), 1.0):
            return
        before = injector.workload.acknowledged["burst"]
        injector.workload.burst(partition, 1, acks="all")
        if not await injector.wait(lambda: injector.workload.acknowledged["burst"] > before, 0.3):
            return
        if not self._end_leader(leader, "bounce") or not await self._elected(partition, epoch):
            return
        second, epoch = injector.leader(partition), self._epoch(partition)
        if second is not None:
            injector.note("holds fetched batches for", away)
            hold = injector.network.hold(name_of(second), name_of(away), responses(ApiKey.FETCH))
            injector.heal(pairs)
            with injector.uninformed(away):
                await injector.wait(lambda: away in self._members(partition), self.random.choice((0.2, 1.2)))
                if self.random.random() < 0.6 and self._end_leader(second, "bounce"):
                    await self._elected(partition, epoch)
                hold.release()
        injector.workload.quiet_until.pop(partition, None)
