"""Fault sequences in which a single message is late or lost: a controller's request, an answer, a fetched batch.

Owns: the sequences; see `leader_sequences`. What is held and how long is drawn. A hold is released before its sequence
ends, so that nothing is held for ever.
"""

import asyncio

from minibroker.protocol.wire.messages import ApiKey
from minibroker.simulation.swarm.faults.fault_injector import name_of
from minibroker.simulation.swarm.faults.sequence_steps import SequenceSteps
from minibroker.simulation.world.message_holds import requests, responses

CAUGHT_SECONDS = 1.0
HELD_SECONDS_MAX = 2.0


class MessageHoldSequences(SequenceSteps):
    """Each public method is one sequence."""

    async def held_orders(self) -> None:
        """LeaderAndIsr or StopReplica requests to one broker are held, or lost, during one or two elections."""
        injector, controller, partition = self.injector, self.injector.cluster.controller(), self.injector.partition()
        if controller is None:
            return
        uninformed = self.random.choice(injector.others(controller))
        apis = self.random.choice(((ApiKey.LEADER_AND_ISR,), (ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA)))
        injector.note("holds orders to", uninformed)
        hold = injector.network.hold(name_of(controller), name_of(uninformed), requests(*apis))
        with injector.uninformed(uninformed):
            await self._elections(partition, self.random.randint(1, 2), spared=controller)
            await asyncio.sleep(self.random.uniform(0.0, HELD_SECONDS_MAX))
            if self.random.random() < 0.3:
                self._end_leader(controller, "kill")  # its requests arrive when another controller is active
                await asyncio.sleep(injector.options.session_seconds + 0.7)
            self._release(hold)
        injector.workload.burst(partition, 2)
        await self._start_later(controller)

    async def held_isr_answer(self) -> None:
        """The ISR has changed and the leader does not know; it fails, or goes on for a while."""
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
        """A proposal is applied and its answer lost: the retry finds the ISR as proposed."""
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
        """Batches and high watermarks for a follower are held while leaders change, and arrive in another epoch."""
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
        """A follower asks where its epoch ended, and is answered after another epoch has begun."""
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
        """Batches are written and their answers lost, up to five in flight; then the leader may change."""
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
        """Answers come after a producer's delivery timeout; its next records must not reuse those sequences."""
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
        """Requests to one broker are lost with their connections, again and again, while leaders change."""
        injector, controller, partition = self.injector, self.injector.cluster.controller(), self.injector.partition()
        if controller is None:
            return
        uninformed = self.random.choice(injector.others(controller))
        apis = self.random.choice(
            ((ApiKey.LEADER_AND_ISR,), (ApiKey.UPDATE_METADATA,), (ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA))
        )
        injector.note("loses orders to", uninformed)
        if self.random.random() < 0.5:
            hold = injector.network.drop_frames(name_of(controller), name_of(uninformed), requests(*apis), times=8)
        else:
            hold = injector.network.lose_replies(name_of(controller), name_of(uninformed), *apis, times=3)
        with injector.uninformed(uninformed):
            await self._elections(partition, self.random.randint(1, 2), spared=controller)
            await asyncio.sleep(self.random.uniform(0.0, 0.5))
            hold.release()
