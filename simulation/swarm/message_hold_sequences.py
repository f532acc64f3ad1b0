"""Orders of faults in which a single message is late or lost: an order of the controller, an answer, a fetched batch.

Owns and refuses what `fault_sequences` does. What is held and how long is drawn; a hold is released before its sequence
ends, so that nothing is held for ever.
"""

import asyncio

from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.messages import ApiKey
from minibroker.simulation.message_holds import MessageHold, requests, responses
from minibroker.simulation.swarm.controller_sequences import ControllerSequences
from minibroker.simulation.swarm.fault_injector import name_of

CAUGHT_SECONDS = 1.0
HELD_SECONDS_MAX = 2.0


class MessageHoldSequences(ControllerSequences):
    """Each public method is one sequence."""

    def _release(self, hold: MessageHold, may_drop: bool = True) -> None:
        if hold.held and may_drop and self.random.random() < 0.3:
            self.injector.note("drops what it held")
            hold.drop()
        else:
            self.injector.note("lets go")
            hold.release()

    async def _elections(self, partition: TopicPartition, number: int, spared: int | None = None) -> None:
        """Leaders fall by a bounce or a shutdown, with a record in each reign."""
        for _ in range(number):
            leader, epoch = self.injector.leader(partition), self._epoch(partition)
            if leader is None or leader == spared or not self._force_election(leader):
                return
            if not await self._elected(partition, epoch):
                return
            if self.random.random() < 0.7:
                self.injector.workload.burst(partition, 1)
                await asyncio.sleep(self.random.choice((0.0, 0.02)))

    async def held_orders(self) -> None:
        """One broker's LeaderAndIsr or StopReplica waits on its way, or is lost, over one or two elections."""
        injector, controller, partition = self.injector, self.injector.cluster.controller(), self.injector.partition()
        if controller is None:
            return
        deaf = self.random.choice(injector.others(controller))
        apis = self.random.choice(((ApiKey.LEADER_AND_ISR,), (ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA)))
        injector.note("holds orders to", deaf)
        hold = injector.network.hold(name_of(controller), name_of(deaf), requests(*apis))
        with injector.uninformed(deaf):
            await self._elections(partition, self.random.randint(1, 2), spared=controller)
            await asyncio.sleep(self.random.uniform(0.0, HELD_SECONDS_MAX))
            if self.random.random() < 0.3:
                self._end_leader(controller, "kill")  # its last word arrives when another is active
                await asyncio.sleep(injector.options.session_seconds + 0.7)
            self._release(hold)
        injector.workload.burst(partition, 2)
        await self._start_later(controller)

    async def held_isr_answer(self) -> None:
        """The ISR has changed and its leader does not know; it falls, or goes on for a while."""
        injector, partition = self.injector, self.injector.partition()
        leader, controller = injector.leader(partition), injector.cluster.controller()
        followers = [b for b in self._members(partition) if b != leader]
        if leader is None or not followers or controller is None:
            return
        injector.note("holds the answer to AlterPartition for", leader)
        hold = injector.network.hold(None, name_of(leader), responses(ApiKey.ALTER_PARTITION))
        victim = self.random.choice(followers)
        if self.random.random() < 0.5:
            injector.cut_off(victim, injector.others(victim), injector.options.lag_seconds + 0.4)
        else:
            injector.bounce(victim)
        injector.workload.burst(partition, 2, acks="all")
        await injector.wait(lambda: hold.held > 0, injector.options.lag_seconds * 1.5 + CAUGHT_SECONDS)
        injector.workload.burst(partition, 2, acks="all")
        injector.workload.burst(partition, 1, acks=1)
        await asyncio.sleep(self.random.choice((0.02, 0.2, 0.8)))
        if self.random.random() < 0.6 and self._end_leader(leader):
            await self._start_later(leader)
        self._release(hold)

    async def lost_isr_answer(self) -> None:
        """Applied, and the answer lost: the retry finds what it wants already there."""
        injector, partition = self.injector, self.injector.partition()
        leader = injector.leader(partition)
        followers = [b for b in self._members(partition) if b != leader]
        if leader is None or not followers:
            return
        injector.note("loses answers to AlterPartition for", leader)
        hold = injector.network.lose_replies(
            name_of(leader), None, ApiKey.ALTER_PARTITION, times=self.random.randint(1, 2)
        )
        injector.pause(self.random.choice(followers), injector.options.lag_seconds + 0.4)
        injector.workload.burst(partition, 2, acks="all")
        await asyncio.sleep(injector.options.lag_seconds * 1.5 + 0.5)
        hold.release()

    async def held_fetch_answer(self) -> None:
        """Batches and marks for a follower wait on their way while leaders change, and arrive in another epoch."""
        injector, partition = self.injector, self.injector.partition()
        leader = injector.leader(partition)
        if leader is None:
            return
        victim = self.random.choice(injector.others(leader))
        injector.note("holds fetched batches for", victim)
        hold = injector.network.hold(name_of(leader), name_of(victim), responses(ApiKey.FETCH))
        with injector.uninformed(victim):
            injector.workload.burst(partition, self.random.randint(1, 3))
            await injector.wait(lambda: hold.held > 0, CAUGHT_SECONDS)
            await self._elections(partition, self.random.randint(1, 2), spared=victim)
            await asyncio.sleep(self.random.choice((0.0, 0.05, 0.5)))
            self._release(hold)

    async def held_epoch_answer(self) -> None:
        """A follower's question where its epoch ended is answered when another epoch has begun."""
        injector, partition = self.injector, self.injector.partition()
        leader = injector.leader(partition)
        if leader is None:
            return
        if self.random.random() < 0.5 and not await self._leave_tail(partition, leader, 1):
            return
        victim = self.random.choice(injector.cluster.broker_ids)
        injector.note("holds ends of epochs for", victim)
        hold = injector.network.hold(None, name_of(victim), responses(ApiKey.OFFSET_FOR_LEADER_EPOCH))
        with injector.uninformed(victim):
            await self._elections(partition, 1)
            await injector.wait(lambda: hold.held > 0, CAUGHT_SECONDS)
            await self._elections(partition, 1, spared=victim)
            injector.workload.burst(partition, 1)
            await asyncio.sleep(self.random.choice((0.0, 0.1, 0.6)))
            self._release(hold)

    async def lost_produce_answers(self) -> None:
        """Batches are written, their answers lost, some with five in flight; then, maybe, another leads."""
        injector, partition = self.injector, self.injector.partition()
        leader = injector.leader(partition)
        if leader is None:
            return
        times = self.random.choice((1, 2, 5))
        injector.note("loses answers to Produce of", leader, times)
        hold = injector.network.lose_replies("client", name_of(leader), ApiKey.PRODUCE, times=times)
        for _ in range(8):
            injector.workload.burst(partition, 1, acks="all")
            await asyncio.sleep(0.003)
        await asyncio.sleep(self.random.choice((0.05, 0.2)))
        if self.random.random() < 0.6:
            await self._elections(partition, 1)
        hold.release()

    async def held_produce_answers(self) -> None:
        """A producer waits longer than it may for what is written; its next records must not take those sequences."""
        injector, partition = self.injector, self.injector.partition()
        leader = injector.leader(partition)
        if leader is None:
            return
        injector.note("holds answers to Produce of", leader)
        hold = injector.network.hold(name_of(leader), "client", responses(ApiKey.PRODUCE))
        for _ in range(4):
            injector.workload.burst(partition, 2, acks="all")
            await asyncio.sleep(0.01)
        await asyncio.sleep(min(2.5, injector.options.delivery_timeout_ms / 1000 + 0.2))
        self._release(hold)
        injector.workload.burst(partition, 2, acks="all")

    async def lost_orders(self) -> None:
        """The orders to one broker are lost with their connections, again and again, while leaders change."""
        injector, controller, partition = self.injector, self.injector.cluster.controller(), self.injector.partition()
        if controller is None:
            return
        deaf = self.random.choice(injector.others(controller))
        apis = self.random.choice(
            ((ApiKey.LEADER_AND_ISR,), (ApiKey.UPDATE_METADATA,), (ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA))
        )
        injector.note("loses orders to", deaf)
        if self.random.random() < 0.5:
            hold = injector.network.drop_frames(name_of(controller), name_of(deaf), requests(*apis), times=8)
        else:
            hold = injector.network.lose_replies(name_of(controller), name_of(deaf), *apis, times=3)
        with injector.uninformed(deaf):
            await self._elections(partition, self.random.randint(1, 2), spared=controller)
            await asyncio.sleep(self.random.uniform(0.0, 0.5))
            hold.release()
