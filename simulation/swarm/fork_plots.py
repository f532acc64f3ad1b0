"""Orders of faults that leave logs forked in a certain way: who has which record of which epoch is what matters.

Owns and refuses what `plots` does.
"""

import asyncio

from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.messages import ApiKey
from minibroker.protocol.znodes import TopicAssignment, topic_path
from minibroker.simulation.gates import requests, responses
from minibroker.simulation.swarm.gate_plots import GatePlots
from minibroker.simulation.swarm.hand import name_of
from minibroker.simulation.swarm.plots import TAIL_SECONDS


class ForkPlots(GatePlots):
    """Each public method is one plot."""

    def _next_in_line(self, partition: TopicPartition, leader: int) -> int | None:
        """Who is elected if the leader falls: the first of the assignment that is in sync and lives."""
        node = self.hand.zookeeper.tree.nodes.get(topic_path(partition.topic))
        replicas = [] if node is None else TopicAssignment.decode(node.data).partitions[str(partition.partition)]
        members = self._members(partition)
        return next((b for b in replicas if b in members and b != leader), None)

    async def _settle(self, partition: TopicPartition, seconds: float) -> bool:
        """Nobody writes for a while, and all replicas come to the same end."""
        hand = self.hand
        hand.workload.quiet_until[partition] = hand.world.loop.elapsed + seconds

        def is_settled() -> bool:
            states = [r.state for b in hand.cluster.broker_ids if (r := hand.replica(b, partition)) is not None]
            return len({(state.log_end_offset, state.high_watermark) for state in states}) == 1

        return await hand.wait(is_settled, 1.0)

    async def _tail_for_some(self, partition: TopicPartition, leader: int, deaf: int) -> bool:
        """Records that all but one follower have."""
        hand = self.hand
        hand.cut_off(deaf, [leader], TAIL_SECONDS)
        hand.workload.burst(partition, self.random.randint(1, 2))
        hearing = [b for b in hand.others(leader) if b != deaf and hand.replica(b, partition) is not None]
        end = hand.log_end(deaf, partition)
        return await hand.wait(lambda: any(hand.log_end(b, partition) > end for b in hearing), TAIL_SECONDS)

    async def forked_tails(self) -> None:
        """A record of one epoch is on two replicas, the third leads without it and writes its own, then falls, too."""
        hand, partition = self.hand, self.hand.partition()
        if self.random.random() < 0.7:  # so that one replica has nothing at all of the epoch that forks
            await self._settle(partition, 4.0)
            first, epoch = hand.leader(partition), self._epoch(partition)
            if first is None or not self._end_leader(first, "bounce") or not await self._elected(partition, epoch):
                return
        await self.whole(partition)
        leader, epoch = hand.leader(partition), self._epoch(partition)
        if leader is None:
            return
        deaf = self._next_in_line(partition, leader)
        if deaf is None or not await self._tail_for_some(partition, leader, deaf):
            return
        if not self._end_leader(leader, "bounce") or not await self._elected(partition, epoch):
            return
        second, epoch = hand.leader(partition), self._epoch(partition)
        if second is not None and await self._leave_tail(partition, second, 1):
            self._end_leader(second, "bounce")
            await self._elected(partition, epoch)
        hand.workload.quiet_until.pop(partition, None)

    async def there_and_back(self) -> None:
        """A follower misses a whole reign: its leader has lost and regained its office, and other records stand."""
        hand, partition = self.hand, self.hand.partition()
        await self.whole(partition)
        leader, controller, epoch = hand.leader(partition), hand.cluster.controller(), self._epoch(partition)
        if leader is None or controller is None:
            return
        heir = self._next_in_line(partition, leader)
        deaf = next((b for b in self._members(partition) if b not in (leader, heir)), None)
        if heir is None or deaf is None or deaf == controller:
            return
        if self.random.random() < 0.7:
            await self._tail_for_some(partition, leader, heir)
        hand.note("holds orders to", deaf)
        gate = hand.network.hold(None, name_of(deaf), requests(ApiKey.LEADER_AND_ISR))
        with hand.unhearing(deaf):
            if self._end_leader(leader, "bounce") and await self._elected(partition, epoch):
                hand.workload.burst(partition, 1)
                await hand.wait(lambda: leader in self._members(partition), 2.0)
                self._end_leader(heir, "bounce")
                await self._elected(partition, epoch + 1)
                hand.workload.burst(partition, 1)
                await asyncio.sleep(self.random.uniform(0.0, 0.3))
            self._let_go(gate)

    async def lagging_mark(self) -> None:
        """A new leader's mark is older than what was acknowledged, and a replica that was away comes back to it."""
        hand, partition = self.hand, self.hand.partition()
        leader, epoch = hand.leader(partition), self._epoch(partition)
        if leader is None or not await self._settle(partition, 5.0):
            return
        away = self.random.choice(hand.others(leader))
        pairs = hand.cut_off(away, hand.others(away), 4.0)
        if not hand.bounce(away) or not await hand.wait(lambda: away not in self._members(partition), 1.0):
            return
        before = hand.workload.acknowledged["burst"]
        hand.workload.burst(partition, 1, acks="all")
        if not await hand.wait(lambda: hand.workload.acknowledged["burst"] > before, 0.3):
            return
        if not self._end_leader(leader, "bounce") or not await self._elected(partition, epoch):
            return
        second, epoch = hand.leader(partition), self._epoch(partition)
        if second is not None:
            hand.note("holds fetched batches for", away)
            gate = hand.network.hold(name_of(second), name_of(away), responses(ApiKey.FETCH))
            hand.heal(pairs)
            with hand.unhearing(away):
                await hand.wait(lambda: away in self._members(partition), self.random.choice((0.2, 1.2)))
                if self.random.random() < 0.6 and self._end_leader(second, "bounce"):
                    await self._elected(partition, epoch)
                gate.release()
        hand.workload.quiet_until.pop(partition, None)
