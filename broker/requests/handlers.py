"""One handler for each API a broker answers.

Owns: the table from API to handler, and the checks before a handler runs. Leaves to others: state; a handler turns a
request into calls on the parts, and their result into a response.

Produce, Fetch and queries are answered in the call itself (or delayed by their handler); requests that need ZooKeeper
or the controller, and look-ups by time, run as tasks, a bounded number at a time.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from msgspec.structs import replace

from minibroker.broker.configuration.dynamic_config import DynamicConfig
from minibroker.broker.membership.failure_confirmer import FailureConfirmer
from minibroker.broker.membership.metadata_image import MetadataChange, MetadataImage
from minibroker.broker.membership.registration import Registration
from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.monitoring.recent_events import RecentEvents
from minibroker.broker.owned_tasks import OwnedTasks
from minibroker.broker.replicas.observations import MetadataAnswered
from minibroker.broker.replicas.replica_manager import ReplicaManager
from minibroker.broker.requests import administration_events
from minibroker.broker.requests.authentication import Authentication
from minibroker.broker.requests.authorization import CLUSTER_ACTIONS, READS_AS_REPLICA, refuse
from minibroker.broker.requests.controller_epochs import ControllerEpochs
from minibroker.broker.requests.describe_configs import answer_describe_configs
from minibroker.broker.requests.offset_requests import (
    OffsetsByTime,
    answer_list_offsets,
    answer_offset_for_leader_epoch,
    asks_by_time,
)
from minibroker.broker.requests.produce import ProduceHandler
from minibroker.broker.requests.producer_ids import ProducerIds
from minibroker.broker.requests.producer_name_admin import ProducerNameAdmin
from minibroker.broker.requests.replica_description import describe_replicas
from minibroker.broker.requests.replica_log_info import answer_log_info
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire import messages as m
from minibroker.protocol.wire.message_types import clipped
from minibroker.protocol.wire.messages import ApiKey
from minibroker.runtime.server.incoming_request import IncomingRequest, RequestConnection

log = logging.getLogger("minibroker.handlers")

CLIENTS_TASKS_MAX = 200
"""Requests of clients that may wait for ZooKeeper or the controller at a time; more are refused with a retriable
error."""
BROKERS_TASKS_MAX = 2_000
"""The same for brokers, which send few of them. The limits are separate, so that clients' requests cannot block an
order of the controller or a proposal."""

LOOKUPS_TASKS_MAX = 200
"""Requests with look-ups by time under way, of clients and brokers; more are refused with a retriable error. They must
not block administrative requests."""

VERSION = "0.1.0"

Handle = Callable[[IncomingRequest, Any], None]


class ControllerRole(Protocol):
    """The part of the controller candidate in the same process that the broker uses."""

    async def handle(self, request: m.Request) -> m.Response:
        """Answer, or NOT_CONTROLLER."""
        ...

    def ignored_nodes(self) -> dict[str, str]:
        """Znodes that it leaves alone, and why; none unless it is the controller."""
        ...

    def topic_deletions(self) -> dict[str, str]:
        """Topics that are marked for deletion, each with a sentence about that; none unless it is the controller."""
        ...


class RequestHandlers:
    """One handler for each API."""

    def __init__(
        self,
        *,
        manager: ReplicaManager,
        produce: ProduceHandler,
        image: MetadataImage,
        registration: Registration,
        producer_ids: ProducerIds,
        producer_name_admin: ProducerNameAdmin,
        dynamic_config: DynamicConfig,
        controller: ControllerRole,
        failure_confirmer: FailureConfirmer,
        authentication: Authentication,
        controller_epochs: ControllerEpochs,
        counters: BrokerCounters,
        events: RecentEvents,
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._manager = manager
        self._produce = produce
        self._image = image
        self._registration = registration
        self._dynamic_config = dynamic_config
        self._controller = controller
        self._authentication = authentication
        self._controller_epochs = controller_epochs
        self._counters = counters
        self._monotonic_ns = monotonic_ns
        self._clients_tasks, self._brokers_tasks, self._lookups_tasks = OwnedTasks(), OwnedTasks(), OwnedTasks()
        self._time_lookups = OffsetsByTime(manager)
        self.failed_reads: list[str] = []
        """Queries that hit a bug of our own: for tests, which must detect them."""
        self._table: dict[int, Handle] = {
            ApiKey.PRODUCE: produce.handle,
            ApiKey.FETCH: manager.fetches.handle,
            ApiKey.LIST_OFFSETS: self._look_up_or(self._read(lambda r, body: answer_list_offsets(manager, body))),
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self._read(lambda r, body: answer_offset_for_leader_epoch(manager, body)),
            ApiKey.SASL_HANDSHAKE: self._read(authentication.handshake),
            ApiKey.SASL_AUTHENTICATE: authentication.authenticate,
            ApiKey.METADATA: self._read(self._metadata),
            ApiKey.DESCRIBE_CLUSTER: self._read(self._describe_cluster),
            ApiKey.API_VERSIONS: self._read(lambda r, body: _API_VERSIONS),
            ApiKey.LEADER_AND_ISR: self._from_controller(self._leader_and_isr),
            ApiKey.STOP_REPLICA: self._from_controller(self._stop_replica),
            ApiKey.UPDATE_METADATA: self._from_controller(self._update_metadata),
            ApiKey.DESCRIBE_CONFIGS: self._read(self._describe_configs),
            ApiKey.DESCRIBE_REPLICA_STATE: self._read(
                lambda r, body: describe_replicas(manager, registration, image, body)
            ),
            ApiKey.DESCRIBE_EVENTS: self._read(
                lambda r, body: events.answer(image.broker_id, registration.incarnation_id, body)
            ),
            ApiKey.GET_REPLICA_LOG_INFO: self._read(lambda r, body: answer_log_info(manager, registration, body)),
            ApiKey.INIT_PRODUCER_ID: self._later(producer_ids.answer),
            ApiKey.LIST_PRODUCER_NAMES: self._later(producer_name_admin.list_names),
            ApiKey.DELETE_PRODUCER_NAMES: self._later(producer_name_admin.delete_names),
            ApiKey.CREATE_TOPICS: self._later(controller.handle),
            ApiKey.DELETE_TOPICS: self._later(controller.handle),
            ApiKey.ELECT_LEADERS: self._later(controller.handle),
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self._later(controller.handle),
            ApiKey.ALTER_PARTITION: self._later(controller.handle),
            ApiKey.CONTROLLED_SHUTDOWN: self._later(controller.handle),
            ApiKey.CONFIRM_FAILURE: self._later(failure_confirmer.answer),
        }
        assert set(self._table) == set(m.APIS), "every API has a handler"
        for key in CLUSTER_ACTIONS:
            self._table[key] = self._for_brokers(self._table[key])
        for key in READS_AS_REPLICA:
            self._table[key] = self._for_clients_or_replicas(self._table[key], self._for_brokers(self._table[key]))

    def handle(self, request: IncomingRequest) -> None:
        """Entry of the server: one synchronous call for each request, in order of arrival."""
        begun = self._monotonic_ns()
        self._table[request.api_key](request, request.body)
        self._counters.count_request(request.api_key, self._monotonic_ns() - begun)

    # ---------------------------------------------------------------------------------------------------- styles
    def _for_brokers(self, handle: Handle) -> Handle:
        """Handles only requests that a broker sends in its own name."""

        def checked(request: IncomingRequest, body: Any) -> None:
            refusal = refuse(request.connection.principal, body, self._image.broker_epoch)
            if refusal is None:
                handle(request, body)
            else:
                request.connection.log_refused_request(ApiKey(request.api_key).name, refusal.error_message)
                request.respond(refusal)

        return checked

    @staticmethod
    def _for_clients_or_replicas(as_consumer: Handle, as_replica: Handle) -> Handle:
        def handle(request: IncomingRequest, body: Any) -> None:
            (as_consumer if body.replica_id < 0 else as_replica)(request, body)

        return handle

    def _from_controller(self, obey: Callable[[IncomingRequest, Any], m.Response]) -> Handle:
        """A control request under a controller epoch that is new to this broker waits until ZooKeeper confirms the
        epoch."""

        def handle(request: IncomingRequest, body: Any) -> None:
            if self._controller_epochs.is_known(body.controller_epoch):
                request.respond(obey(request, body))
                return

            async def confirmed() -> m.Response:
                refusal = await self._controller_epochs.refuse(body.controller_epoch)
                return obey(request, body) if refusal is None else refusal

            self._begin(request, confirmed)

        return handle

    def _read(self, answer: Callable[[IncomingRequest, Any], m.Response]) -> Handle:
        """A query, which changes nothing. If it hits a bug of our own, only its sender gets an error, also if its
        answer cannot be encoded. A failed assertion still ends the process, because it may concern shared state."""

        def handle(request: IncomingRequest, body: Any) -> None:
            try:
                request.respond(answer(request, body))
            except AssertionError:
                raise
            except Exception:
                self._read_failed(request, body)

        return handle

    def _read_failed(self, request: IncomingRequest, body: Any) -> None:
        api = ApiKey(request.api_key).name
        self.failed_reads.append(api)
        log.exception("a bug: %s from %s cannot be answered: %.500r", api, request.connection.peer, body)
        text = "this broker met a bug of its own: see its log"
        request.respond(m.Response(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=text))

    def _look_up_or(self, answer_now: Handle) -> Handle:
        """ListOffsets: only a request without a look-up by time is answered in the call itself."""

        def handle(request: IncomingRequest, body: m.ListOffsetsRequest) -> None:
            if asks_by_time(body):
                what = "requests with look-ups by time"
                self._own(request, self._lookups_tasks, LOOKUPS_TASKS_MAX, what, lambda: self._look_up(request, body))
            else:
                answer_now(request, body)

        return handle

    async def _look_up(self, request: IncomingRequest, body: m.ListOffsetsRequest) -> None:
        try:
            request.respond(await self._time_lookups.answer(body))
        except AssertionError:
            raise
        except Exception:
            self._read_failed(request, body)

    def _later(self, answer: Callable[[Any], Awaitable[m.Response]]) -> Handle:
        def handle(request: IncomingRequest, body: Any) -> None:
            self._begin(request, lambda: answer(body))

        return handle

    def _begin(self, request: IncomingRequest, answer: Callable[[], Awaitable[m.Response]]) -> None:
        """Answer the request in a task of its own."""
        is_brokers = request.connection.is_broker
        tasks = self._brokers_tasks if is_brokers else self._clients_tasks
        limit = BROKERS_TASKS_MAX if is_brokers else CLIENTS_TASKS_MAX
        self._own(request, tasks, limit, "administrative requests", lambda: self._answer(request, answer()))

    def _own(
        self,
        request: IncomingRequest,
        tasks: OwnedTasks,
        limit: int,
        what: str,
        work: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        if len(tasks) >= limit:
            message = f"{len(tasks)} {what} are under way; try again"
            request.respond(m.Response(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=message))
            return
        tasks.own(work(), ApiKey(request.api_key).name.lower())

    async def _answer(self, request: IncomingRequest, answer: Awaitable[m.Response]) -> None:
        response = await answer
        administration_events.record(request, response)
        request.respond(response)

    def connection_closed(self, connection: RequestConnection) -> None:
        """Drop everything that was kept for this connection."""
        self._authentication.connection_closed(connection)
        self._manager.fetches.connection_closed(connection)

    async def stop(self) -> None:
        """Cancel all running tasks."""
        await self._clients_tasks.stop()
        await self._brokers_tasks.stop()
        await self._lookups_tasks.stop()

    # --------------------------------------------------------------------------------------------------- handlers
    def _leader_and_isr(self, request: IncomingRequest, body: m.LeaderAndIsrRequest) -> m.Response:
        change = self._image.apply_leader_and_isr(body, self._registration.broker_epoch)
        if change.error_code:
            return _refused(change)
        self._after(change)
        return self._manager.orders.leader_and_isr(body)

    def _describe_cluster(self, request: IncomingRequest, body: m.DescribeClusterRequest) -> m.Response:
        """Only the controller's own broker can list the znodes that the controller leaves alone, and deletions."""
        ignored_nodes = [
            m.IgnoredNode(path=clipped(path), reason=clipped(reason))
            for path, reason in self._controller.ignored_nodes().items()
        ]
        topic_deletions = [
            m.TopicDeletion(topic=topic, reason=clipped(reason))
            for topic, reason in list(self._controller.topic_deletions().items())[: m.TOPIC_DELETIONS_MAX]
        ]
        answer = self._image.answer_describe_cluster(request.connection.listener_name)
        return replace(answer, ignored_nodes=ignored_nodes, topic_deletions=topic_deletions)

    def _metadata(self, request: IncomingRequest, body: m.MetadataRequest) -> m.Response:
        if self._image.is_of_an_earlier_registration(self._registration.broker_epoch):
            text = "this broker has registered again, and has not heard from a controller since: ask another broker"
            return m.Response(error_code=ErrorCode.BROKER_NOT_AVAILABLE, error_message=text)
        listener, is_fenced = request.connection.listener_name, self._registration.is_fenced()
        response = self._image.answer_metadata(body, listener, is_fenced=is_fenced)
        if self._manager.observer.wants_details:
            self._manager.observer.notify(MetadataAnswered(self._image.broker_id, response))
        return response

    def _update_metadata(self, request: IncomingRequest, body: m.UpdateMetadataRequest) -> m.Response:
        change = self._image.apply_update(body, self._registration.broker_epoch)
        if change.error_code:
            return _refused(change)
        self._after(change)
        return m.UpdateMetadataResponse(
            controller_unreachable_ms=self._manager.alter_partition.unreachable_ms(),
            offline_partitions=m.grouped_by_topic(self._manager.offline_partitions()),
        )

    def _stop_replica(self, request: IncomingRequest, body: m.StopReplicaRequest) -> m.Response:
        change = self._image.admit(body, self._registration.broker_epoch)
        if change.error_code:
            return _refused(change)
        self._after(change)
        return self._manager.orders.stop_replica(body)

    def _after(self, change: MetadataChange) -> None:
        """Perform what follows from a request of the controller."""
        if change.controller_changed or change.brokers_changed:
            self._manager.alter_partition.controller_changed()
        if change.brokers_changed:
            self._manager.brokers_changed(tuple(self._manager.partitions))
        elif change.partitions_changed:
            self._manager.brokers_changed(change.partitions_changed)
        if change.configs_changed:
            self._manager.reconfigure(topics=change.configs_changed)

    def _describe_configs(self, request: IncomingRequest, body: m.DescribeConfigsRequest) -> m.Response:
        dynamic = self._dynamic_config
        return answer_describe_configs(body, dynamic.current, dynamic.overrides, self._image)


def _refused(change: MetadataChange) -> m.Response:
    return m.Response(error_code=change.error_code, error_message=change.error_message)


_API_VERSIONS = m.ApiVersionsResponse(
    api_keys=[m.ApiVersion(api_key=key) for key in sorted(m.APIS)], broker_software_version=VERSION
)
