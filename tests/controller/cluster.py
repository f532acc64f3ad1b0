"""A simulated world for tests of the controller: real controllers over virtual ports, and fake brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from minibroker.controller.service import ControllerConfig, ControllerService
from minibroker.protocol import znodes
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ConfirmFailureRequest,
    ConfirmFailureResponse,
    CreatableAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    Request,
    Response,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from minibroker.protocol.znodes import BrokerRegistration, PartitionState
from minibroker.runtime.observer import Observers
from minibroker.runtime.ports import Coordination, Runtime, SessionEvent
from minibroker.runtime.server.server import IncomingRequest, RpcServer
from minibroker.simulation.world.world import SimulatedWorld
from tests.authenticated import Answering, dialer

LISTENER = "INTERNAL"
PORT = 9092
SESSION_MS = 3000


class FakeBroker:
    """A registration in ZooKeeper and a server that records requests and answers without errors."""

    def __init__(self, cluster: Cluster, broker_id: int, incarnation: str) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.incarnation = incarnation
        self.host = f"broker{broker_id}"
        self.broker_epoch = -1
        self.requests: list[Request] = []
        self.is_mute = False
        self.is_refused = False
        """Its answer to ConfirmFailure."""
        self.inquiries: list[ConfirmFailureRequest] = []
        self.answers: dict[type[Request], Response] = {}
        self.runtime: Runtime = cluster.world.runtime(self.host)
        self.coordination: Coordination = self.runtime.open_coordination("zk:2181", SESSION_MS)
        self.server = RpcServer(self.runtime.network, Answering(broker_id, self._handle, LISTENER))

    async def start(self) -> None:
        await self.server.start(self.host, PORT, LISTENER)
        await self.coordination.start()
        await self.register()

    async def register(self) -> None:
        registration = BrokerRegistration(
            host=self.host,
            port=PORT,
            endpoints=[f"{LISTENER}://{self.host}:{PORT}"],
            listener_security_protocol_map={LISTENER: "PLAINTEXT"},
            timestamp="0",
            incarnation_id=self.incarnation,
            directory_id=f"d{self.broker_id}",
        )
        path = znodes.broker_path(self.broker_id)
        _, stat = await self.coordination.create(path, registration.encode(), ephemeral=True, make_parents=True)
        self.broker_epoch = stat.czxid

    async def unregister(self) -> None:
        await self.coordination.delete(znodes.broker_path(self.broker_id))

    def answer_again(self) -> None:
        """Be mute no more, and have what was not answered sent again."""
        self.is_mute = False
        for connection in list(self.server.connections.values()):
            connection.abort_because("the test has the order sent again")

    def _handle(self, incoming: IncomingRequest) -> None:
        body = incoming.body
        if isinstance(body, ConfirmFailureRequest):
            self.inquiries.append(body)
            incoming.respond(ConfirmFailureResponse(refused=self.is_refused))
            return
        if isinstance(body, ApiVersionsRequest):  # of a liveness connection
            if not self.is_mute:
                incoming.respond(ApiVersionsResponse())
            return
        self.requests.append(body)
        if self.is_mute:
            return
        default: dict[type[Any], Response] = {
            GetReplicaLogInfoRequest: GetReplicaLogInfoResponse(),  # of no log
            LeaderAndIsrRequest: LeaderAndIsrResponse(),
            UpdateMetadataRequest: UpdateMetadataResponse(),
            StopReplicaRequest: StopReplicaResponse(),
        }
        incoming.respond(self.answers.get(type(body)) or default[type(body)])

    # ------------------------------------------------------------------------------------------------- received orders
    def leader_and_isr(self, topic: str, partition: int) -> list[LeaderAndIsrPartition]:
        return [
            each
            for request in self.requests
            if isinstance(request, LeaderAndIsrRequest)
            for state in request.topic_states
            if state.topic_name == topic
            for each in state.partition_states
            if each.partition_index == partition
        ]

    def metadata(self, topic: str, partition: int) -> list[UpdateMetadataPartition]:
        return [
            each
            for request in self.requests
            if isinstance(request, UpdateMetadataRequest)
            for state in request.topic_states
            if state.topic_name == topic
            for each in state.partition_states
            if each.partition_index == partition
        ]

    def orders_of(self, controller_epoch: int) -> int:
        """Number of orders from the controller of one epoch."""
        orders = (LeaderAndIsrRequest, UpdateMetadataRequest, StopReplicaRequest)
        return sum(isinstance(each, orders) and each.controller_epoch == controller_epoch for each in self.requests)

    def stops(self, topic: str, partition: int) -> list[StopReplicaPartition]:
        return [
            each
            for request in self.requests
            if isinstance(request, StopReplicaRequest)
            for state in request.topic_states
            if state.topic_name == topic
            for each in state.partition_states
            if each.partition_index == partition
        ]


class OwnBroker:
    """The broker of a candidate's process; it has received orders up to this controller epoch."""

    def __init__(self) -> None:
        self.highest_epoch = 0
        self.told: list[str] = []
        """What its candidate has told it."""

    def count_broker_failure(self) -> None:
        self.told.append("a broker failed")

    def note_refusal(self, broker_id: int, broker_epoch: int) -> None:
        self.told.append(f"broker {broker_id} of epoch {broker_epoch} refused")

    def observe_removal(self) -> None:
        self.told.append("its registration is gone")

    def highest_controller_epoch(self) -> int:
        return self.highest_epoch


class Candidate:
    """A controller service on its own machine, and the task that runs it."""

    def __init__(self, cluster: Cluster, name: str, config: ControllerConfig, coordination: Coordination) -> None:
        runtime = cluster.world.runtime(name)
        self.name = name
        self.coordination = coordination
        self.own_broker = OwnBroker()
        self.events: list[object] = []
        """All that the service has reported."""
        self.service = ControllerService(
            config,
            coordination,
            dialer(runtime.network, config.broker_id),
            self.own_broker,
            runtime.clock,
            runtime.random,
            accept_topic_value,
            observer=Observers(self.events.append),
        )
        self.task = cluster.world.spawn(name, self.service.run())
        coordination.add_session_listener(
            lambda event: self.service.session_lost() if event.kind == "expired" else None
        )

    def _on_session(self, event: SessionEvent) -> None:
        if event.kind == "expired":
            self.service.session_lost()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class UnknownSetting(ValueError, LookupError):
    """As brokers raise it."""


def accept_topic_value(name: str, value: str) -> str:
    if name == "no.such.config":
        raise UnknownSetting(f"{name} is unknown")
    if not value:
        raise ValueError(f"{name}: a value is missing")
    return value.strip()


class Cluster:
    """Brokers, candidates, and an observer's own session."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.brokers: dict[int, FakeBroker] = {}
        self.observer: Coordination = world.runtime("observer").open_coordination("zk:2181", 10_000)

    async def start(self, *broker_ids: int) -> None:
        await self.observer.start()
        for path in znodes.PERSISTENT_PATHS:
            await self.observer.create(path, b"")
        for broker_id in broker_ids:
            await self.add_broker(broker_id)

    async def add_broker(self, broker_id: int, incarnation: str | None = None) -> FakeBroker:
        broker = FakeBroker(self, broker_id, incarnation or f"i{broker_id}")
        self.brokers[broker_id] = broker
        await self.world.spawn(broker.host, broker.start())
        return broker

    async def kill_broker(self, broker_id: int) -> None:
        """End the process and its session."""
        broker = self.brokers.pop(broker_id)
        session = broker.coordination.session_id
        self.world.kill(broker.host)
        self.world.zookeeper.expire_session(session)

    async def candidate(
        self, name: str = "controller", broker_id: int = 100, contests: bool = True, **settings: Any
    ) -> Candidate:
        """A started candidate; it wins if it is the first. It is no broker, so that brokers may come and go."""
        config = ControllerConfig(broker_id=broker_id, inter_broker_listener_name=LISTENER, **settings)
        runtime = self.world.runtime(name)
        coordination = runtime.open_coordination("zk:2181", SESSION_MS)
        await self.world.spawn(name, coordination.start())
        candidate = Candidate(self, name, config, coordination)
        if contests:
            candidate.service.registered(1, f"incarnation of {name}")
        return candidate

    async def candidate_of(self, broker_id: int, **settings: Any) -> Candidate:
        """The candidate in the process, and on the session, of a registered broker."""
        broker = self.brokers[broker_id]
        config = ControllerConfig(broker_id=broker_id, inter_broker_listener_name=LISTENER, **settings)
        candidate = Candidate(self, broker.host, config, broker.coordination)
        candidate.service.registered(broker.broker_epoch, broker.incarnation)
        return candidate

    async def controller(self, **settings: Any) -> Candidate:
        """A candidate that has won."""
        candidate = await self.candidate(**settings)
        await self.until(lambda: candidate.service.is_active)
        return candidate

    async def ask(self, candidate: Candidate, request: Request) -> Response:
        """The answer of this candidate's process to a request."""
        return await self.world.spawn(candidate.name, candidate.service.handle(request))

    async def create(
        self, candidate: Candidate, topic: str, assignment: list[list[int]], **configs: str
    ) -> CreateTopicsResponse:
        assignments = [
            CreatableAssignment(partition_index=number, broker_ids=replicas)
            for number, replicas in enumerate(assignment)
        ]
        names = {name.replace("_", "."): value for name, value in configs.items()}
        requested = CreatableTopic(name=topic, assignments=assignments, configs=names)
        response = await self.ask(candidate, CreateTopicsRequest(topics=[requested]))
        assert isinstance(response, CreateTopicsResponse), response
        assert response.topics[0].error_code == 0, response
        return response

    async def state(self, topic: str, partition: int = 0) -> PartitionState:
        """The partition state in ZooKeeper."""
        content, _ = await self.observer.get(znodes.partition_state_path(TopicPartition(topic, partition)))
        return PartitionState.decode(content)

    async def version(self, topic: str, partition: int = 0) -> int:
        _, stat = await self.observer.get(znodes.partition_state_path(TopicPartition(topic, partition)))
        return stat.version

    async def change_state(self, topic: str, partition: int = 0, **fields: Any) -> None:
        """Write as another client of ZooKeeper."""
        path = znodes.partition_state_path(TopicPartition(topic, partition))
        changed = msgspec.structs.replace(await self.state(topic, partition), **fields)
        await self.observer.set(path, changed.encode())

    async def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> None:
        """Wait, in virtual time, until the condition holds; it may be a coroutine function."""
        async with asyncio.timeout(seconds):
            while True:
                result = condition()
                if asyncio.iscoroutine(result):
                    result = await result
                if result:
                    return
                await asyncio.sleep(0.01)


def simulated(story: Callable[[Cluster], Any]) -> Callable[[], None]:
    """Make a synchronous test of a coroutine, which gets a cluster that is not started yet."""

    def test() -> None:
        world = SimulatedWorld()
        world.run(story(Cluster(world)))

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test
