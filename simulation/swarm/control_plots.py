"""Orders of faults around the controller: its words late or lost, itself paused, deposed or dead at the wrong moment.

Owns and refuses what `plots` does.
"""

import asyncio
from collections.abc import Callable

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.hand import name_of
from minibroker.simulation.swarm.plots import GRACE_SECONDS, Plots


class ControlPlots(Plots):
    """Each public method is one plot."""

    def _force_election(self, broker_id: int) -> bool:
        """Of all that this broker leads."""
        hand = self.hand
        if self.random.random() < 0.3 and hand.is_alive(broker_id) and not hand.hangs_by_a_thread():
            if not hand.may_fall(broker_id):
                return False
            hand.note("term", broker_id)
            hand.stopping.append(hand.world.process(name_of(broker_id)))
            hand.cluster.stop(broker_id)
            return True
        return self._end_leader(broker_id, self.random.choice(("bounce", "kill")))

    async def late_control(self) -> None:
        """One broker hears the controller late, while leaders change."""
        hand, controller = self.hand, self.hand.cluster.controller()
        if controller is None:
            return
        deaf = self.random.choice(hand.others(controller))
        hand.slow(name_of(controller), name_of(deaf), self.random.choice((0.2, 0.5, 1.0)), 3.0)
        partition = hand.partition()
        for _ in range(2):
            leader, epoch = hand.leader(partition), self._epoch(partition)
            if leader is None or not self._force_election(leader):
                return
            await self._elected(partition, epoch)
            hand.workload.burst(partition, 2)
            await self._start_later(leader)

    async def lost_control(self) -> None:
        """One broker hears nothing of the controller over one or two elections; then the connection breaks."""
        hand, controller = self.hand, self.hand.cluster.controller()
        if controller is None:
            return
        deaf, partition = self.random.choice(hand.others(controller)), hand.partition()
        seconds = self.random.uniform(0.5, 2.5)
        hand.cut_off(controller, [deaf], seconds, both_ways=False)
        for _ in range(self.random.randint(1, 2)):
            leader, epoch = hand.leader(partition), self._epoch(partition)
            if leader is None or leader == controller:
                break
            if not self._force_election(leader) or not await self._elected(partition, epoch):
                break
            hand.workload.burst(partition, 1)
        await asyncio.sleep(self.random.uniform(0.0, seconds))
        hand.note("reset", name_of(controller), name_of(deaf))
        hand.network.reset_connections(name_of(controller), name_of(deaf))

    async def isr_answer_lost(self) -> None:
        """The ISR has changed, the leader does not hear of it in time, and may fall."""
        hand, partition = self.hand, self.hand.partition()
        leader, controller = hand.leader(partition), hand.cluster.controller()
        followers = [b for b in self._members(partition) if b != leader]
        if leader is None or controller is None or not followers:
            return
        how = self.random.choice(("late", "reset", "paused"))
        changed = self._on_next_change(partition.topic, lambda: self._lose_answer(controller, leader, how))
        victim = self.random.choice(followers)
        if self.random.random() < 0.5:
            hand.pause(victim, hand.options.lag_seconds + 0.5)
        else:
            hand.bounce(victim)
        hand.workload.burst(partition, 2, acks="all")
        await hand.wait(changed.is_set, hand.options.lag_seconds * 2 + 0.5)
        hand.workload.burst(partition, 2, acks="all")
        await asyncio.sleep(self.random.choice((0.01, 0.1, 0.4)))
        if self.random.random() < 0.5 and self._end_leader(leader):
            await self._start_later(leader)

    def _on_next_change(self, topic: str, act: Callable[[], None]) -> asyncio.Event:
        """Act in the very moment in which ZooKeeper takes the next state of a partition of this topic."""
        done = asyncio.Event()

        def look(partition: TopicPartition) -> None:
            if partition.topic == topic and not done.is_set():
                done.set()
                self.hand.truth.listeners.remove(look)
                act()

        self.hand.truth.listeners.append(look)
        return done

    def _lose_answer(self, controller: int, leader: int, how: str) -> None:
        hand = self.hand
        if how == "paused" and controller != leader:
            hand.world.loop.call_soon(hand.pause, controller, self.random.uniform(0.3, hand.options.lag_seconds + 0.5))
        elif how == "reset":
            hand.note("reset", name_of(controller), name_of(leader))
            hand.network.reset_connections(name_of(controller), name_of(leader))
        elif controller != leader:
            hand.slow(name_of(controller), name_of(leader), self.random.choice((0.3, 1.0)), 1.5)

    async def zk_answer_lost(self) -> None:
        """The controller's write happened, its answer is lost."""
        hand, controller = self.hand, self.hand.cluster.controller()
        if controller is None:
            return
        hand.note("zookeeper loses the next reply to", controller)
        hand.zookeeper.lose_next_reply(name_of(controller), self.random.randint(1, 2))
        victim = self.random.choice(hand.others(controller))
        if self.random.random() < 0.5:
            hand.bounce(victim)
        else:
            hand.pause(victim, hand.options.lag_seconds + 0.3)
        await asyncio.sleep(hand.options.lag_seconds)

    async def paused_controller(self) -> None:
        """The controller sleeps past its session while brokers fall; it wakes up deposed, with work in hand."""
        hand, controller = self.hand, self.hand.cluster.controller()
        if controller is None:
            return
        partition = hand.partition()
        victim = self.random.choice(hand.others(controller))
        if self.random.random() < 0.5:
            hand.kill(victim)
            await hand.wait(lambda: self._is_gone(victim), hand.options.session_seconds + GRACE_SECONDS)
        seconds = hand.options.session_seconds + self.random.uniform(-0.3, 1.5)
        if not hand.pause(controller, seconds):
            return
        if hand.is_alive(victim):
            await asyncio.sleep(self.random.uniform(0.0, seconds))
            self._end_leader(victim, self.random.choice(("bounce", "kill")))
        hand.workload.burst(partition, 2, acks="all")
        await asyncio.sleep(self.random.uniform(0.0, 1.0))
        hand.start(victim)

    def _is_gone(self, broker_id: int) -> bool:
        return f"/brokers/ids/{broker_id}" not in self.hand.zookeeper.tree.nodes

    async def controller_and_leader(self) -> None:
        """The controller falls together with a leader, or with one that has just fallen."""
        hand, partition = self.hand, self.hand.partition()
        leader, controller = hand.leader(partition), hand.cluster.controller()
        if leader is None or controller is None:
            return
        way = self.random.choice(("kill", "bounce"))
        self._end_leader(leader, way)
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.01, 0.1)))
        self._end_leader(controller, way)
        await asyncio.sleep(self.random.uniform(0.0, hand.options.session_seconds + 1.0))
        await self._start_later(leader)
        await self._start_later(controller)

    async def shutdown_under_load(self) -> None:
        """A leader is asked to end while much is written, and may be killed on its way."""
        hand, partition = self.hand, self.hand.partition()
        leader = hand.leader(partition)
        if leader is None or hand.hangs_by_a_thread() or not hand.may_fall(leader):
            return
        hand.note("term", leader)
        process = hand.world.process(name_of(leader))
        hand.stopping.append(process)
        hand.cluster.stop(leader)
        for _ in range(10):
            hand.workload.burst(partition, 2, acks="all")
            await asyncio.sleep(0.02)
        if self.random.random() < 0.3:
            hand.kill(leader)
        if await hand.wait(lambda: not process.alive, 3.0):
            await self._start_later(leader)

    async def topic_again(self) -> None:
        """A topic is deleted and made anew while one broker hears the controller late, or is away."""
        hand, controller = self.hand, self.hand.cluster.controller()
        if controller is None:
            return
        deaf = self.random.choice(hand.others(controller))
        if self.random.random() < 0.6:
            hand.slow(name_of(controller), name_of(deaf), self.random.choice((0.1, 0.4)), 3.0)
        elif hand.kill(deaf):
            await asyncio.sleep(self.random.uniform(0.0, hand.options.session_seconds))
        hand.note("topic again")
        await hand.workload.make_again("again")
        hand.start(deaf)
