"""How long writes stop when a process dies, hangs or is wrongly suspected: a whole cluster, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.descriptions import NewTopic
from minibroker.client.producer.producer import Producer
from minibroker.protocol.events.broker_events import BrokerStopped
from minibroker.protocol.events.controller_events import BrokerFailureConfirmed, BrokerFailureNotConfirmed
from minibroker.runtime.ports import NetworkError, Transport
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.network import SimulatedNetwork
from minibroker.simulation.world.transport import ProtocolFactory

TOPIC = "t"
SESSION_MS = 6_000
SOON_MS = 300.0
"""The goal for writes after the failure of a leader; virtual brokers compute in no time, so the
goal is generous here."""
REFUSES_SECONDS = 0.005
"""Some round trips: how long a killed container's address refuses before it is gone."""
LISTENS_SECONDS = 0.003
"""How long a dying process may still accept connections after its existing ones are closed."""
CONTAINER_REFUSES_SECONDS = 0.03
"""Less than the 50 ms that a container's address was observed to refuse for, on an idle machine and on a busy one."""
CONTAINER_MS = 500.0
"""The goal in containers."""

Story = Callable[["Scene"], Awaitable[None]]


class Scene:
    """A cluster of three with one topic of one partition, and a session far longer than any fast failover."""

    def __init__(self, seed: int = 1, detection: str = "connection", brokers: int = 3, **others: str) -> None:
        settings = {"zookeeper.session.timeout.ms": str(SESSION_MS), "broker.failure.detection": detection}
        settings |= {name.replace("_", "."): value for name, value in others.items()}
        self.cluster = SimulatedCluster(seed, brokers, settings)
        self.world = self.cluster.world

    def play(self, story: Story, leader_is_controller: bool = False) -> None:
        self.world.run(self._play(story, leader_is_controller), seconds_max=200)

    async def _play(self, story: Story, leader_is_controller: bool) -> None:
        cluster = self.cluster
        cluster.start_all()
        await cluster.until_ready()
        controller = cluster.controller()
        assert controller is not None
        others = [each for each in cluster.broker_ids if each != controller]
        replicas = [controller, *others] if leader_is_controller else [*others, controller]
        runtime = cluster.client_runtime()
        async with AdminClient(bootstrap_servers=cluster.bootstrap_servers, runtime=runtime) as admin:
            await admin.create_topics([NewTopic(name=TOPIC, assignment={0: replicas})])
        async with Producer(bootstrap_servers=cluster.bootstrap_servers, runtime=runtime) as self.producer:
            await self.write()
            await asyncio.sleep(2)
            await story(self)

    async def kill_container(self, broker_id: int, refuses_seconds: float) -> None:
        """Its name is unknown at once, and its address disappears with its process, a moment later."""
        name = f"broker-{broker_id}"
        self.world.network.forget_name(name)
        self.cluster.kill(broker_id)
        await asyncio.sleep(refuses_seconds)
        self.world.network.isolate(name)

    def close_connections_to(self, broker_id: int) -> None:
        """Close all its connections from outside its process."""
        for each in self.cluster.broker_ids:
            if each != broker_id:
                self.world.network.reset_connections(f"broker-{each}", f"broker-{broker_id}")

    @property
    def leader(self) -> int:
        leader = self.cluster.leader(TOPIC)
        assert leader is not None
        return leader

    async def write(self) -> float:
        """Write a record; returns the milliseconds until it is acknowledged."""
        begun = self.world.loop.time()
        await self.producer.send_and_wait(TOPIC, b"value")
        return (self.world.loop.time() - begun) * 1000

    def registered(self) -> list[int]:
        return [b for b in self.cluster.broker_ids if f"/brokers/ids/{b}" in self.world.zookeeper.tree.nodes]


def test_writes_resume_at_once_after_the_failure_of_a_leader() -> None:
    async def story(scene: Scene) -> None:
        dead = scene.leader
        scene.cluster.kill(dead)
        assert await scene.write() < SOON_MS
        assert dead not in scene.registered()
        epoch = scene.cluster.replica(scene.leader, TOPIC).state.leader_epoch  # type: ignore[union-attr]
        await asyncio.sleep(2 * SESSION_MS / 1000)  # the end of its session changes nothing
        assert scene.cluster.replica(scene.leader, TOPIC).state.leader_epoch == epoch  # type: ignore[union-attr]
        scene.cluster.start(dead)
        await scene.cluster.until(lambda: scene.cluster.in_sync_replicas(TOPIC) == (1, 2, 3), what="a full ISR")

    for seed in range(5):
        Scene(seed).play(story)


def test_writes_resume_at_once_after_the_failure_of_a_controller_that_leads() -> None:
    async def story(scene: Scene) -> None:
        dead = scene.leader
        assert scene.cluster.controller() == dead
        scene.cluster.kill(dead)
        assert await scene.write() < SOON_MS
        assert scene.cluster.controller() != dead
        assert dead not in scene.registered()

    for seed in range(5):
        Scene(seed).play(story, leader_is_controller=True)


def test_dead_controller_that_leads_nothing_is_succeeded_at_once() -> None:
    async def story(scene: Scene) -> None:
        dead = scene.cluster.controller()
        assert dead not in (None, scene.leader)
        scene.cluster.kill(dead or 0)
        await scene.cluster.until(lambda: scene.cluster.controller() not in (None, dead), SOON_MS / 1000)
        assert dead not in scene.registered()

    Scene().play(story)


@pytest.mark.parametrize("leader_is_controller", [False, True])
def test_container_whose_address_disappears_with_it_is_replaced_at_once(leader_is_controller: bool) -> None:
    async def story(scene: Scene) -> None:
        dead = scene.leader
        await scene.kill_container(dead, REFUSES_SECONDS)
        assert await scene.write() < CONTAINER_MS
        assert dead not in scene.registered()

    for seed in range(5):
        Scene(seed).play(story, leader_is_controller)


def test_container_of_a_controller_that_leads_nothing_is_replaced_at_once() -> None:
    async def story(scene: Scene) -> None:
        dead = scene.cluster.controller()
        assert dead not in (None, scene.leader)
        await scene.kill_container(dead or 0, REFUSES_SECONDS)
        await scene.cluster.until(lambda: scene.cluster.controller() not in (None, dead), CONTAINER_MS / 1000)

    for seed in range(5):
        Scene(seed).play(story)


@pytest.mark.parametrize("leader_is_controller", [False, True])
def test_container_that_accepts_connections_while_it_dies_is_replaced_at_once(leader_is_controller: bool) -> None:
    """A kernel may close a dead process's listening socket last: a broker that dials again too soon connects, and loses
    the connection."""

    async def story(scene: Scene) -> None:
        dead = scene.leader
        scene.close_connections_to(dead)
        await asyncio.sleep(LISTENS_SECONDS)
        await scene.kill_container(dead, CONTAINER_REFUSES_SECONDS)
        assert await scene.write() < CONTAINER_MS
        assert dead not in scene.registered()

    for seed in range(5):
        Scene(seed).play(story, leader_is_controller)


@pytest.mark.parametrize("leader_is_controller", [False, True])
def test_container_that_resets_connections_while_it_dies_is_replaced_at_once(
    leader_is_controller: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listening socket is closed between the two halves of the attempt, which is then neither
    accepted nor refused."""
    dying: list[str] = []
    connect = SimulatedNetwork.connect

    async def reset(
        network: SimulatedNetwork, factory: ProtocolFactory, host: str, port: int, timeout_ms: int
    ) -> tuple[Transport, asyncio.BufferedProtocol]:
        if host in dying:
            raise NetworkError(f"cannot connect to {host}:{port}: connection reset by peer")
        return await connect(network, factory, host, port, timeout_ms)

    monkeypatch.setattr(SimulatedNetwork, "connect", reset)

    async def story(scene: Scene) -> None:
        dead = scene.leader
        dying.append(scene.world.network.address_of(f"broker-{dead}"))
        asyncio.get_running_loop().call_later(LISTENS_SECONDS, dying.clear)
        await scene.kill_container(dead, CONTAINER_REFUSES_SECONDS)
        assert await scene.write() < CONTAINER_MS
        assert dead not in scene.registered()

    for seed in range(5):
        Scene(seed).play(story, leader_is_controller)


def test_container_that_never_refuses_is_replaced_when_its_session_ends() -> None:
    async def story(scene: Scene) -> None:
        await scene.kill_container(scene.leader, 0.0)
        assert SESSION_MS / 2 < await scene.write() < 2 * SESSION_MS

    Scene().play(story)


def test_controller_and_leader_that_die_together_leave_no_broker_to_confirm() -> None:
    async def story(scene: Scene) -> None:
        controller, leader = scene.cluster.controller(), scene.leader
        scene.cluster.kill(controller or 0)
        scene.cluster.kill(leader)
        await asyncio.sleep(SESSION_MS / 2000)
        assert scene.registered() == [1, 2, 3]

    Scene().play(story)


def test_detection_by_session_waits_for_the_session() -> None:
    async def story(scene: Scene) -> None:
        scene.cluster.kill(scene.leader)
        assert await scene.write() > SESSION_MS / 2

    Scene(detection="session").play(story)


def test_machine_that_is_gone_is_replaced_when_its_session_ends() -> None:
    async def story(scene: Scene) -> None:
        scene.cluster.power_loss(scene.leader)
        assert SESSION_MS / 2 < await scene.write() < 2 * SESSION_MS

    Scene().play(story)


def test_leader_that_hangs_is_replaced_when_its_session_ends() -> None:
    async def story(scene: Scene) -> None:
        scene.world.pause(f"broker-{scene.leader}")
        assert SESSION_MS / 2 < await scene.write() < 2 * SESSION_MS

    Scene().play(story)


def test_leader_killed_while_the_controller_hangs_is_replaced_as_soon_as_it_wakes() -> None:
    async def story(scene: Scene) -> None:
        controller = f"broker-{scene.cluster.controller()}"
        scene.world.pause(controller)
        scene.cluster.kill(scene.leader)
        await asyncio.sleep(1)
        assert scene.registered() == [1, 2, 3]
        scene.world.resume(controller)
        assert await scene.write() < SOON_MS

    Scene().play(story)


def test_leader_that_is_back_within_a_moment_is_a_restarted_one() -> None:
    async def story(scene: Scene) -> None:
        dead = scene.leader
        scene.cluster.kill(dead)
        scene.cluster.start(dead)
        await scene.write()
        assert scene.leader != dead, "it may have lost what was not on its disk"
        await scene.cluster.until(lambda: scene.cluster.in_sync_replicas(TOPIC) == (1, 2, 3), what="a full ISR")

    for seed in range(5):
        Scene(seed).play(story)


@pytest.mark.parametrize("leader_is_controller", [False, True])
def test_leader_that_stops_cleanly_is_not_reported_dead(leader_is_controller: bool) -> None:
    async def story(scene: Scene) -> None:
        scene.cluster.stop(scene.leader)
        assert await scene.write() < SOON_MS
        await asyncio.sleep(1)
        assert len(scene.registered()) == 2

    events: list[object] = []
    for seed in range(5):
        scene = Scene(seed)
        with scene.world.observers.subscribed(events.append):
            scene.play(story, leader_is_controller)
    assert any(isinstance(each, BrokerStopped) for each in events)
    assert not [each for each in events if isinstance(each, BrokerFailureConfirmed | BrokerFailureNotConfirmed)]


def test_wrongly_suspected_leader_is_fenced_first_and_loses_nothing() -> None:
    async def story(scene: Scene) -> None:
        suspected = scene.leader
        epoch = scene.cluster.brokers[suspected].registration.broker_epoch
        scene.world.network.reject(None, f"broker-{suspected}")
        await scene.cluster.until(
            lambda: scene.cluster.brokers[suspected].registration.broker_epoch not in (None, epoch),
            SOON_MS / 1000,
            "a new registration of the suspected broker",
        )
        assert await scene.write() < SESSION_MS
        scene.world.network.reject_no_more(None, f"broker-{suspected}")
        await scene.write()
        await scene.cluster.until(lambda: scene.cluster.in_sync_replicas(TOPIC) == (1, 2, 3), what="a full ISR")

    for seed in range(5):
        Scene(seed).play(story)


BOUND_MS = 20_000.0
"""A probe of the controller every three seconds, six without an answer, another registration; with a margin."""


def test_leader_that_rejects_all_connections_is_replaced_though_it_registers_again() -> None:
    """The controller's ZooKeeper is slow: it sees the new registration of the leader, and never its absence."""

    async def story(scene: Scene) -> None:
        leader, controller = scene.leader, scene.cluster.controller()
        scene.world.zookeeper.slow_hosts[f"broker-{controller}"] = 0.1
        scene.world.network.reject(None, f"broker-{leader}")
        await asyncio.sleep(0.5)
        assert await scene.write() < 3_000
        assert scene.leader != leader
        scene.world.network.reject_no_more(None, f"broker-{leader}")
        await scene.cluster.until(lambda: scene.cluster.in_sync_replicas(TOPIC) == (1, 2, 3), what="a full ISR")

    for seed in range(5):
        Scene(seed).play(story)


def test_isr_changes_although_the_leader_does_not_reach_the_controller() -> None:
    async def story(scene: Scene) -> None:
        leader, controller = scene.leader, scene.cluster.controller()
        (third,) = {1, 2, 3} - {leader, controller}
        scene.world.network.partition(f"broker-{leader}", f"broker-{controller}")
        scene.cluster.kill(third)
        scene.cluster.start(third)
        assert await scene.write() < BOUND_MS
        await scene.cluster.until(lambda: len(scene.cluster.in_sync_replicas(TOPIC)) >= 2, 30, "an ISR of two")

    for seed in range(3):
        Scene(seed, replica_lag_time_max_ms="5000").play(story)


def test_controller_that_no_broker_can_reach_is_replaced() -> None:
    async def story(scene: Scene) -> None:
        controller = scene.cluster.controller()
        for each in {1, 2, 3} - {controller}:
            scene.world.network.partition(f"broker-{each}", f"broker-{controller}")
        await scene.cluster.until(
            lambda: scene.cluster.controller() not in (None, controller), 30, "another controller"
        )
        assert await scene.write() < BOUND_MS

    for seed in range(3):
        Scene(seed, replica_lag_time_max_ms="5000").play(story)


def test_unreachable_leader_is_replaced_while_its_session_lives() -> None:
    async def story(scene: Scene) -> None:
        leader = scene.leader
        for each in {1, 2, 3} - {leader}:
            scene.world.network.partition(f"broker-{each}", f"broker-{leader}")
        assert await scene.write() < BOUND_MS
        assert scene.leader != leader

    for seed in range(3):
        Scene(seed, replica_lag_time_max_ms="5000").play(story)


def test_leader_that_is_told_everything_and_reaches_no_controller_is_replaced() -> None:
    async def story(scene: Scene) -> None:
        leader, controller = scene.leader, scene.cluster.controller()
        (third,) = {1, 2, 3} - {leader, controller}
        scene.world.network.reject(f"broker-{leader}", f"broker-{controller}")
        scene.world.network.partition(f"broker-{leader}", f"broker-{third}")
        assert await scene.write() < BOUND_MS
        assert scene.leader != leader

    for seed in range(3):
        Scene(seed, replica_lag_time_max_ms="5000").play(story)
