"""Fault sequences around the controller: its messages are late or lost, or it is paused, deposed or killed at a bad
time.

Owns: the sequences; see `leader_sequences`.
"""

import asyncio
from collections.abc import Callable

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.faults.fault_injector import name_of
from minibroker.simulation.swarm.faults.sequence_steps import GRACE_SECONDS, SequenceSteps


class ControllerSequences(SequenceSteps):
    """Each public method is one sequence."""

    async def late_control(self) -> None:
        """The controller's messages reach one broker late, while leaders change."""
        injector, controller = self.injector, self.injector.cluster.controller()
        if controller is None:
            return
        other = self.random.choice(injector.others(controller))
        injector.slow(name_of(controller), name_of(other), self.random.choice((0.2, 0.5, 1.0)), 3.0)
        partition = injector.partition()
        for _ in range(2):
            leader, epoch = injector.leader(partition), self._epoch(partition)
            if leader is None or not self._force_election(leader):
                return
            await self._elected(partition, epoch)
            injector.workload.burst(partition, 2)
            await self._start_later(leader)

    async def lost_control(self) -> None:
        """One broker misses the controller's messages during one or two elections; then the connection breaks."""
        injector, controller = self.injector, self.injector.cluster.controller()
        if controller is None:
            return
        other, partition = self.random.choice(injector.others(controller)), injector.partition()
        seconds = self.random.uniform(0.5, 2.5)
        injector.cut_off(controller, [other], seconds, both_ways=False)
        for _ in range(self.random.randint(1, 2)):
            leader, epoch = injector.leader(partition), self._epoch(partition)
            if leader is None or leader == controller:
                break
            if not self._force_election(leader) or not await self._elected(partition, epoch):
                break
            injector.workload.burst(partition, 1)
        await asyncio.sleep(self.random.uniform(0.0, seconds))
        injector.note("reset", name_of(controller), name_of(other))
        injector.network.reset_connections(name_of(controller), name_of(other))

    async def isr_answer_lost(self) -> None:
        """The ISR has changed, the leader does not learn of it in time, and may fail."""
        injector, partition = self.injector, self.injector.partition()
        leader, controller = injector.leader(partition), injector.cluster.controller()
        followers = [b for b in self._members(partition) if b != leader]
        if leader is None or controller is None or not followers:
            return
        how = self.random.choice(("late", "reset", "paused"))
        changed = self._on_next_change(partition.topic, lambda: self._lose_answer(controller, leader, how))
        victim = self.random.choice(followers)
        if self.random.random() < 0.5:
            injector.pause(victim, injector.options.lag_seconds + 0.5)
        else:
            injector.bounce(victim)
        injector.workload.burst(partition, 2, acks="all")
        await injector.wait(changed.is_set, injector.options.lag_seconds * 2 + 0.5)
        injector.workload.burst(partition, 2, acks="all")
        await asyncio.sleep(self.random.choice((0.01, 0.1, 0.4)))
        if self.random.random() < 0.5 and self._end_leader(leader):
            await self._start_later(leader)

    def _on_next_change(self, topic: str, act: Callable[[], None]) -> asyncio.Event:
        """Act at the moment when ZooKeeper stores the next state of a partition of this topic."""
        done = asyncio.Event()

        def look(partition: TopicPartition) -> None:
            if partition.topic == topic and not done.is_set():
                done.set()
                self.injector.reference.listeners.remove(look)
                act()

        self.injector.reference.listeners.append(look)
        return done

    def _lose_answer(self, controller: int, leader: int, how: str) -> None:
        injector = self.injector
        if how == "paused" and controller != leader:
            injector.world.loop.call_soon(
                injector.pause, controller, self.random.uniform(0.3, injector.options.lag_seconds + 0.5)
            )
        elif how == "reset":
            injector.note("reset", name_of(controller), name_of(leader))
            injector.network.reset_connections(name_of(controller), name_of(leader))
        elif controller != leader:
            injector.slow(name_of(controller), name_of(leader), self.random.choice((0.3, 1.0)), 1.5)

    async def zk_answer_lost(self) -> None:
        """The controller's write was applied, but its answer is lost."""
        injector, controller = self.injector, self.injector.cluster.controller()
        if controller is None:
            return
        injector.note("zookeeper loses the next reply to", controller)
        injector.zookeeper.lose_next_reply(name_of(controller), self.random.randint(1, 2))
        victim = self.random.choice(injector.others(controller))
        if self.random.random() < 0.5:
            injector.bounce(victim)
        else:
            injector.pause(victim, injector.options.lag_seconds + 0.3)
        await asyncio.sleep(injector.options.lag_seconds)

    async def paused_controller(self) -> None:
        """The controller is paused beyond its session while brokers fail; it resumes deposed, with unfinished work."""
        injector, controller = self.injector, self.injector.cluster.controller()
        if controller is None:
            return
        partition = injector.partition()
        victim = self.random.choice(injector.others(controller))
        if self.random.random() < 0.5:
            injector.kill(victim)
            await injector.wait(lambda: self._is_gone(victim), injector.options.session_seconds + GRACE_SECONDS)
        seconds = injector.options.session_seconds + self.random.uniform(-0.3, 1.5)
        if not injector.pause(controller, seconds):
            return
        if injector.is_alive(victim):
            await asyncio.sleep(self.random.uniform(0.0, seconds))
            self._end_leader(victim, self.random.choice(("bounce", "kill")))
        injector.workload.burst(partition, 2, acks="all")
        await asyncio.sleep(self.random.uniform(0.0, 1.0))
        injector.start(victim)

    def _is_gone(self, broker_id: int) -> bool:
        return f"/brokers/ids/{broker_id}" not in self.injector.zookeeper.tree.nodes

    async def controller_and_leader(self) -> None:
        """The controller fails together with a leader, or just after it."""
        injector, partition = self.injector, self.injector.partition()
        leader, controller = injector.leader(partition), injector.cluster.controller()
        if leader is None or controller is None:
            return
        way = self.random.choice(("kill", "bounce"))
        self._end_leader(leader, way)
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.01, 0.1)))
        self._end_leader(controller, way)
        await asyncio.sleep(self.random.uniform(0.0, injector.options.session_seconds + 1.0))
        await self._start_later(leader)
        await self._start_later(controller)

    async def shutdown_under_load(self) -> None:
        """A leader is asked to stop while much is written, and may be killed before it has stopped."""
        injector, partition = self.injector, self.injector.partition()
        leader = injector.leader(partition)
        if leader is None or injector.has_weakened_broker() or not injector.may_fail(leader):
            return
        injector.note("term", leader)
        process = injector.end_by_stop(leader)
        for _ in range(10):
            injector.workload.burst(partition, 2, acks="all")
            await asyncio.sleep(0.02)
        if self.random.random() < 0.3:
            injector.kill(leader)
        if await injector.wait(lambda: not process.alive, 3.0):
            await self._start_later(leader)

    async def topic_again(self) -> None:
        """A topic is deleted and made again while the controller's messages reach one broker late, or it is down."""
        injector, controller = self.injector, self.injector.cluster.controller()
        if controller is None:
            return
        other = self.random.choice(injector.others(controller))
        if self.random.random() < 0.6:
            injector.slow(name_of(controller), name_of(other), self.random.choice((0.1, 0.4)), 3.0)
        elif injector.kill(other):
            await asyncio.sleep(self.random.uniform(0.0, injector.options.session_seconds))
        injector.note("topic again")
        await injector.workload.recreate_topic("again")
        injector.start(other)
