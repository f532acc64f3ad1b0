"""Orders of faults around the controller: its words late or lost, itself paused, deposed or dead at the wrong moment.

Owns and refuses what `fault_sequences` does.
"""

import asyncio
from collections.abc import Callable

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.fault_injector import name_of
from minibroker.simulation.swarm.fault_sequences import GRACE_SECONDS, FaultSequences


class ControllerSequences(FaultSequences):
    """Each public method is one sequence."""

    def _force_election(self, broker_id: int) -> bool:
        """Of all that this broker leads."""
        injector = self.injector
        if self.random.random() < 0.3 and injector.is_alive(broker_id) and not injector.has_weakened_broker():
            if not injector.may_fail(broker_id):
                return False
            injector.note("term", broker_id)
            injector.stopping.append(injector.world.process(name_of(broker_id)))
            injector.cluster.stop(broker_id)
            return True
        return self._end_leader(broker_id, self.random.choice(("bounce", "kill")))

    async def late_control(self) -> None:
        """One broker hears the controller late, while leaders change."""
        injector, controller = self.injector, self.injector.cluster.controller()
        if controller is None:
            return
        deaf = self.random.choice(injector.others(controller))
        injector.slow(name_of(controller), name_of(deaf), self.random.choice((0.2, 0.5, 1.0)), 3.0)
        partition = injector.partition()
        for _ in range(2):
            leader, epoch = injector.leader(partition), self._epoch(partition)
            if leader is None or not self._force_election(leader):
                return
            await self._elected(partition, epoch)
            injector.workload.burst(partition, 2)
            await self._start_later(leader)

    async def lost_control(self) -> None:
        """One broker hears nothing of the controller over one or two elections; then the connection breaks."""
        injector, controller = self.injector, self.injector.cluster.controller()
        if controller is None:
            return
        deaf, partition = self.random.choice(injector.others(controller)), injector.partition()
        seconds = self.random.uniform(0.5, 2.5)
        injector.cut_off(controller, [deaf], seconds, both_ways=False)
        for _ in range(self.random.randint(1, 2)):
            leader, epoch = injector.leader(partition), self._epoch(partition)
            if leader is None or leader == controller:
                break
            if not self._force_election(leader) or not await self._elected(partition, epoch):
                break
            injector.workload.burst(partition, 1)
        await asyncio.sleep(self.random.uniform(0.0, seconds))
        injector.note("reset", name_of(controller), name_of(deaf))
        injector.network.reset_connections(name_of(controller), name_of(deaf))

    async def isr_answer_lost(self) -> None:
        """The ISR has changed, the leader does not hear of it in time, and may fall."""
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
        """Act in the very moment in which ZooKeeper takes the next state of a partition of this topic."""
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
        """The controller's write happened, its answer is lost."""
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
        """The controller sleeps past its session while brokers fall; it wakes up deposed, with work in injector."""
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
        """The controller falls together with a leader, or with one that has just fallen."""
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
        """A leader is asked to end while much is written, and may be killed on its way."""
        injector, partition = self.injector, self.injector.partition()
        leader = injector.leader(partition)
        if leader is None or injector.has_weakened_broker() or not injector.may_fail(leader):
            return
        injector.note("term", leader)
        process = injector.world.process(name_of(leader))
        injector.stopping.append(process)
        injector.cluster.stop(leader)
        for _ in range(10):
            injector.workload.burst(partition, 2, acks="all")
            await asyncio.sleep(0.02)
        if self.random.random() < 0.3:
            injector.kill(leader)
        if await injector.wait(lambda: not process.alive, 3.0):
            await self._start_later(leader)

    async def topic_again(self) -> None:
        """A topic is deleted and made anew while one broker hears the controller late, or is away."""
        injector, controller = self.injector, self.injector.cluster.controller()
        if controller is None:
            return
        deaf = self.random.choice(injector.others(controller))
        if self.random.random() < 0.6:
            injector.slow(name_of(controller), name_of(deaf), self.random.choice((0.1, 0.4)), 3.0)
        elif injector.kill(deaf):
            await asyncio.sleep(self.random.uniform(0.0, injector.options.session_seconds))
        injector.note("topic again")
        await injector.workload.recreate_topic("again")
        injector.start(deaf)
