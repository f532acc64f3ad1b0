"""One handler for each API a broker answers.

Owns: the table from API to handler, and which requests need the broker to be in good standing. Refuses to hold state:
handlers turn a request into calls on the parts, and their result into a response.

Produce, Fetch and the follower's questions are answered in the call itself (or parked by their handler); requests that
need ZooKeeper or the controller run as tasks, a bounded number at a time.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from minibroker.broker.death_witness import DeathWitness
from minibroker.broker.describe_configs import answer_describe_configs
from minibroker.broker.dynamic_config import DynamicConfig
from minibroker.broker.metadata_image import MetadataChange, MetadataImage
from minibroker.broker.metrics import BrokerCounters
from minibroker.broker.offset_requests import answer_list_offsets, answer_offset_for_leader_epoch
from minibroker.broker.owned_tasks import OwnedTasks
from minibroker.broker.produce import ProduceHandler
from minibroker.broker.producer_ids import ProducerIds
from minibroker.broker.registration import Registration
from minibroker.broker.replica_description import describe_replicas
from minibroker.broker.replica_log_info import answer_log_info
from minibroker.broker.replica_manager import ReplicaManager
from minibroker.protocol import messages as m
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.messages import ApiKey
from minibroker.runtime.server import IncomingRequest

log = logging.getLogger("minibroker.handlers")

TASKS_MAX = 200
"""Requests that wait for ZooKeeper or the controller at once; above it they are refused, to be tried again."""

VERSION = "0.1.0"


class ControllerRole(Protocol):
    """What the broker needs of the controller candidate in the same process."""

    async def handle(self, request: m.Request) -> m.Response:
        """Answer, or NOT_CONTROLLER."""
        ...


class RequestHandlers:
    """See the head of this file."""

    def __init__(
        self,
        *,
        manager: ReplicaManager,
        produce: ProduceHandler,
        image: MetadataImage,
        registration: Registration,
        producer_ids: ProducerIds,
        dynamic_config: DynamicConfig,
        controller: ControllerRole,
        witness: DeathWitness,
        counters: BrokerCounters,
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._manager = manager
        self._produce = produce
        self._image = image
        self._registration = registration
        self._producer_ids = producer_ids
        self._dynamic_config = dynamic_config
        self._controller = controller
        self._counters = counters
        self._monotonic_ns = monotonic_ns
        self._tasks = OwnedTasks()
        self._table: dict[int, Callable[[IncomingRequest, Any], None]] = {
            ApiKey.PRODUCE: produce.handle,
            ApiKey.FETCH: manager.fetches.handle,
            ApiKey.LIST_OFFSETS: self._now(lambda r, body: answer_list_offsets(manager, body)),
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self._now(lambda r, body: answer_offset_for_leader_epoch(manager, body)),
            ApiKey.METADATA: self._now(self._metadata),
            ApiKey.DESCRIBE_CLUSTER: self._now(
                lambda r, body: image.answer_describe_cluster(r.connection.listener_name)
            ),
            ApiKey.API_VERSIONS: self._now(lambda r, body: _API_VERSIONS),
            ApiKey.LEADER_AND_ISR: self._now(self._leader_and_isr),
            ApiKey.STOP_REPLICA: self._now(self._stop_replica),
            ApiKey.UPDATE_METADATA: self._now(self._update_metadata),
            ApiKey.DESCRIBE_CONFIGS: self._now(self._describe_configs),
            ApiKey.DESCRIBE_REPLICA_STATE: self._now(
                lambda r, body: describe_replicas(manager, registration, image, body)
            ),
            ApiKey.GET_REPLICA_LOG_INFO: self._now(lambda r, body: answer_log_info(manager, registration, body)),
            ApiKey.INIT_PRODUCER_ID: self._later(self._init_producer_id),
            ApiKey.CREATE_TOPICS: self._later(controller.handle),
            ApiKey.DELETE_TOPICS: self._later(controller.handle),
            ApiKey.ELECT_LEADERS: self._later(controller.handle),
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self._later(controller.handle),
            ApiKey.ALTER_PARTITION: self._later(controller.handle),
            ApiKey.CONTROLLED_SHUTDOWN: self._later(controller.handle),
            ApiKey.CONFIRM_DEATH: self._later(witness.answer),
        }
        assert set(self._table) == set(m.APIS), "every API has a handler"

    def handle(self, request: IncomingRequest) -> None:
        """Entry of the server: one synchronous call for each request, in order of arrival."""
        begun = self._monotonic_ns()
        self._table[request.api_key](request, request.body)
        self._counters.count_request(request.api_key, self._monotonic_ns() - begun)

    # ---------------------------------------------------------------------------------------------------- styles
    def _now(self, answer: Callable[[IncomingRequest, Any], m.Response]) -> Callable[[IncomingRequest, Any], None]:
        def handle(request: IncomingRequest, body: Any) -> None:
            request.respond(answer(request, body))

        return handle

    def _later(self, answer: Callable[[Any], Awaitable[m.Response]]) -> Callable[[IncomingRequest, Any], None]:
        def handle(request: IncomingRequest, body: Any) -> None:
            if len(self._tasks) >= TASKS_MAX:
                message = f"{TASKS_MAX} administrative requests are under way; try again"
                request.respond(m.Response(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=message))
                return
            self._tasks.own(self._answer(request, answer(body)), ApiKey(request.api_key).name.lower())

        return handle

    async def _answer(self, request: IncomingRequest, answer: Awaitable[m.Response]) -> None:
        request.respond(await answer)

    async def stop(self) -> None:
        """End what is under way."""
        await self._tasks.stop()

    # --------------------------------------------------------------------------------------------------- handlers
    def _leader_and_isr(self, request: IncomingRequest, body: m.LeaderAndIsrRequest) -> m.Response:
        change = self._image.apply_leader_and_isr(body, self._registration.broker_epoch)
        if change.error_code:
            return _refused(change)
        request.connection.mark_as_broker()
        self._after(change)
        return self._manager.orders.leader_and_isr(body)

    def _metadata(self, request: IncomingRequest, body: m.MetadataRequest) -> m.Response:
        if self._image.is_of_an_earlier_registration(self._registration.broker_epoch):
            text = "this broker has registered anew, and no controller has told it anything since: ask another one"
            return m.Response(error_code=ErrorCode.BROKER_NOT_AVAILABLE, error_message=text)
        listener, is_fenced = request.connection.listener_name, self._registration.is_fenced()
        return self._image.answer_metadata(body, listener, is_fenced)

    def _update_metadata(self, request: IncomingRequest, body: m.UpdateMetadataRequest) -> m.Response:
        change = self._image.apply_update(body, self._registration.broker_epoch)
        if change.error_code:
            return _refused(change)
        self._after(change)
        return m.UpdateMetadataResponse(controller_unreachable_ms=self._manager.alter_partition.unreachable_ms())

    def _stop_replica(self, request: IncomingRequest, body: m.StopReplicaRequest) -> m.Response:
        change = self._image.admit(
            body.controller_id, body.controller_epoch, body.broker_epoch, self._registration.broker_epoch
        )
        if change.error_code:
            return _refused(change)
        self._after(change)
        return self._manager.orders.stop_replica(body)

    def _after(self, change: MetadataChange) -> None:
        """What else a request of the controller set in motion."""
        if change.controller_changed or change.brokers_changed:
            self._manager.alter_partition.controller_changed()
        if change.brokers_changed or change.partitions_changed:
            self._manager.brokers_changed()
        if change.configs_changed:
            self._manager.reconfigure(topics=change.configs_changed)

    def _describe_configs(self, request: IncomingRequest, body: m.DescribeConfigsRequest) -> m.Response:
        dynamic = self._dynamic_config
        return answer_describe_configs(body, dynamic.current, dynamic.overrides, self._image)

    async def _init_producer_id(self, body: m.InitProducerIdRequest) -> m.Response:
        return await self._producer_ids.answer(body)


def _refused(change: MetadataChange) -> m.Response:
    return m.Response(error_code=change.error_code, error_message=change.error_message)


_API_VERSIONS = m.ApiVersionsResponse(
    api_keys=[m.ApiVersion(api_key=key) for key in sorted(m.APIS)], broker_software_version=VERSION
)
