"""Fault sequences around failure detection: true and false suspicions, short ones, and ones met with a slow ZooKeeper.

Owns: the sequences; see `leader_sequences`.
"""

import asyncio

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.faults.sequence_steps import SequenceSteps


class FailureDetectionSequences(SequenceSteps):
    """Each public method is one sequence."""

    async def _write_for(self, partition: TopicPartition, seconds: float) -> None:
        """Records with acks=1 and with acks=all."""
        for _ in range(5):
            self.injector.workload.burst(partition, 1, acks=1)
            self.injector.workload.burst(partition, 1, acks="all")
            await asyncio.sleep(seconds / 5)

    async def suspected_leader(self) -> None:
        """A leader that is alive refuses the other brokers, maybe clients, too: it leads until it learns of its
        fence."""
        injector, partition = self.injector, self.injector.partition()
        leader, epoch = injector.leader(partition), self._epoch(partition)
        if leader is None:
            return
        sources = self.random.choice((injector.others(leader), None))
        seconds = self.random.uniform(0.3, injector.options.session_seconds + 1.0)
        injector.reject(leader, sources, seconds)
        await self._write_for(partition, seconds / 2)
        if await self._elected(partition, epoch):
            await self._write_for(partition, 0.3)

    async def suspected_controller(self) -> None:
        """A controller that is alive refuses the candidates while it may have elections to do."""
        injector, controller = self.injector, self.injector.cluster.controller()
        if controller is None:
            return
        seconds = self.random.uniform(0.3, injector.options.session_seconds + 1.0)
        injector.reject(controller, injector.others(controller), seconds)
        partition = injector.partition()
        victim = self.random.choice(injector.others(controller))
        if self.random.random() < 0.5:
            await asyncio.sleep(self.random.choice((0.0, 0.005, 0.05)))
            injector.bounce(victim)
        await self._write_for(partition, seconds)

    async def controller_is_refused(self) -> None:
        """One broker refuses the controller, or all others do at once: then it should doubt its own network."""
        injector, controller = self.injector, self.injector.cluster.controller()
        if controller is None:
            return
        suspected = injector.others(controller)
        if self.random.random() < 0.5:
            suspected = [self.random.choice(suspected)]
        seconds = self.random.uniform(0.3, injector.options.session_seconds + 1.0)
        for broker_id in suspected:
            injector.reject(broker_id, [controller], seconds)
        await self._write_for(injector.partition(), seconds)

    async def suspicion_while_zookeeper_is_slow(self) -> None:
        """Removals and new registrations are seen late; by then the firewall is gone, or not."""
        injector, partition = self.injector, self.injector.partition()
        leader, epoch = injector.leader(partition), self._epoch(partition)
        if leader is None:
            return
        delay, seconds = self.random.choice((0.05, 0.2)), 2.0
        injector.slow_zookeeper(delay, seconds)
        injector.reject(leader, injector.others(leader), self.random.choice((0.05, 0.3, seconds)))
        await self._write_for(partition, seconds / 2)
        await self._elected(partition, epoch)

    async def controller_that_leads_is_killed(self) -> None:
        """The controller is killed while it leads a partition, and maybe its successor, too."""
        injector = self.injector
        controller = injector.cluster.controller()
        led = [state.partition for state in injector.reference.states() if state.leader == controller]
        if controller is None or not led:
            return
        partition = self.random.choice(led)
        epoch = self._epoch(partition)
        injector.workload.burst(partition, 2, acks="all")
        if not injector.kill(controller):
            return
        if await self._elected(partition, epoch) and self.random.random() < 0.4:
            successor = injector.cluster.controller()
            if successor is not None and injector.kill(successor):
                await self._start_later(successor)
        await self._start_later(controller)

    async def killed_and_restarted_at_once(self) -> None:
        """A broker is killed and restarted while suspected: before, during or after its removal."""
        injector, partition = self.injector, self.injector.partition()
        controller = injector.cluster.controller()
        victim = self.random.choice((injector.leader(partition), controller))
        if victim is None or not injector.kill(victim):
            return
        await asyncio.sleep(self.random.choice((0.0, 0.001, 0.003, 0.01, 0.03)))
        injector.start(victim)
        await self._write_for(partition, 0.5)
