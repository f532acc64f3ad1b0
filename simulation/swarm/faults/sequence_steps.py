"""Steps that fault sequences share: end a leader, wait for an election, leave records on one replica alone.

Owns: the steps. Leaves to others: the sequences, and what the promise allows (`fault_injector`).
"""

import asyncio

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector
from minibroker.simulation.world.message_holds import MessageHold

TAIL_SECONDS = 0.3
"""A cut of this length leaves records on the leader alone, and is too short for its followers to lag."""
GRACE_SECONDS = 1.5
"""Beyond a session's end: ZooKeeper's tick, the controller's work, the requests to the brokers."""


class SequenceSteps:
    """Base of all classes of fault sequences."""

    def __init__(self, injector: FaultInjector) -> None:
        self.injector = injector
        self.random = injector.random

    async def _elected(self, partition: TopicPartition, old_epoch: int) -> bool:
        """Wait until ZooKeeper names a leader with a later epoch."""

        def is_done() -> bool:
            state = self.injector.state(partition)
            return state is not None and state.leader_epoch > old_epoch and state.leader != -1

        return await self.injector.wait(is_done, self.injector.options.session_seconds + GRACE_SECONDS)

    def _epoch(self, partition: TopicPartition) -> int:
        state = self.injector.state(partition)
        return 0 if state is None else state.leader_epoch

    def _members(self, partition: TopicPartition) -> list[int]:
        """In sync and alive."""
        state = self.injector.state(partition)
        return [] if state is None else [b for b in state.members if self.injector.is_alive(b)]

    async def all_in_sync(self, partition: TopicPartition, seconds: float = 3.0) -> bool:
        """Wait until all replicas are in sync, where a sequence needs to start from."""
        replicas = self.injector.options.topics[partition.topic][1]
        return await self.injector.wait(lambda: len(self._members(partition)) == replicas, seconds)

    def _end_leader(self, leader: int, way: str | None = None) -> bool:
        """By a bounce, a kill or a power cut; False if the promise does not allow it."""
        injector, way = self.injector, way or self.random.choice(("bounce", "kill", "power", "power bounce"))
        if way.startswith("power") and injector.cut_power({leader}):
            if way == "power bounce":
                injector.start(leader)
            return True
        return injector.bounce(leader) if way.endswith("bounce") else injector.kill(leader)

    def _force_election(self, broker_id: int) -> bool:
        """End this broker, so that the partitions that it leads get another leader."""
        injector = self.injector
        if self.random.random() < 0.3 and injector.is_alive(broker_id) and not injector.has_weakened_broker():
            if not injector.may_fail(broker_id):
                return False
            injector.note("term", broker_id)
            injector.end_by_stop(broker_id)
            return True
        return self._end_leader(broker_id, self.random.choice(("bounce", "kill")))

    async def _elections(self, partition: TopicPartition, number: int, spared: int | None = None) -> None:
        """Leaders end by a bounce, a kill or a shutdown; most leader epochs get a record."""
        for _ in range(number):
            leader, epoch = self.injector.leader(partition), self._epoch(partition)
            if leader is None or leader == spared or not self._force_election(leader):
                return
            if not await self._elected(partition, epoch):
                return
            if self.random.random() < 0.7:
                self.injector.workload.burst(partition, 1)
                await asyncio.sleep(self.random.choice((0.0, 0.02)))

    async def _leave_tail(self, partition: TopicPartition, leader: int, records: int) -> bool:
        """Wait until the leader has records that no other replica has."""
        injector = self.injector
        others = injector.others(leader)
        injector.cut_off(leader, others, TAIL_SECONDS)
        injector.workload.burst(partition, records, acks=1)
        injector.workload.burst(partition, 1, acks="all")
        return await injector.wait(
            lambda: injector.log_end(leader, partition) > max(injector.log_end(b, partition) for b in others),
            TAIL_SECONDS,
        )

    async def _start_later(self, broker_id: int) -> None:
        await asyncio.sleep(self.random.uniform(0.0, 0.5))
        self.injector.start(broker_id)

    def _release(self, hold: MessageHold, may_drop: bool = True) -> None:
        if hold.held and may_drop and self.random.random() < 0.3:
            self.injector.note("drops what it held")
            hold.drop()
        else:
            self.injector.note("releases what it held")
            hold.release()
