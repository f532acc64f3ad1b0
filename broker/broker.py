"""One broker process from start to stop: its parts, in the order in which they depend on each other.

Owns: the life cycle (open, register, serve, hand over, close) and the wiring of the parts. Leaves to others: the
controller, known here as a protocol only; `__main__` composes both, because every broker is a controller candidate.

Start: ZooKeeper session, cluster id, log directory (recovery), listeners, registration. Only then can clients find it.
Stop: leaderships are handed over while it still serves, then connections end, then the log is closed cleanly, and the
registration ends last.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from msgspec.structs import replace

from minibroker.broker.configuration.config import BROKER_RESERVE_BYTES, advertised_endpoints, warnings
from minibroker.broker.configuration.config_table import BrokerConfig
from minibroker.broker.configuration.dynamic_config import DynamicConfig, UnreadableSettings
from minibroker.broker.configuration.listening import naming_setting
from minibroker.broker.configuration.topic_config import log_config, resolve_topic_config
from minibroker.broker.log.errors import LogDirectoryError
from minibroker.broker.log.loaded_log import RecoveryReport
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.segments.tail_cache import TailCache
from minibroker.broker.log.segments.warm_segments import WarmSegments
from minibroker.broker.log.side_files.directory_files import read_identity
from minibroker.broker.membership.cluster_secret import SharedSecret
from minibroker.broker.membership.controller_link import ControllerLink
from minibroker.broker.membership.failure_confirmer import FailureConfirmer
from minibroker.broker.membership.metadata_image import MetadataImage
from minibroker.broker.membership.noted_changes import NotedChanges
from minibroker.broker.membership.registration import BrokerIdentity, Registration, RegistrationError, draw_id
from minibroker.broker.membership.zookeeper_session import open_session
from minibroker.broker.monitoring.gauges import read_gauges, readiness
from minibroker.broker.monitoring.http_endpoint import HttpEndpoint, broker_routes
from minibroker.broker.monitoring.metrics import BrokerCounters, BrokerGauges
from minibroker.broker.monitoring.recent_events import RecentEvents
from minibroker.broker.owned_tasks import end_process_on_bug
from minibroker.broker.replicas.periodic_tasks import PeriodicTasks
from minibroker.broker.replicas.replica_manager import ReplicaManager
from minibroker.broker.replicas.witness import WitnessWriter
from minibroker.broker.requests.authentication import Authentication
from minibroker.broker.requests.controller_epochs import ControllerEpochs
from minibroker.broker.requests.handlers import VERSION, ControllerRole, RequestHandlers
from minibroker.broker.requests.produce import ProduceHandler
from minibroker.broker.requests.producer_ids import ProducerIds
from minibroker.broker.requests.producer_name_admin import ProducerNameAdmin
from minibroker.protocol.events.broker_events import (
    BrokerStopped,
    HandoverBegun,
    HandoverUnfinished,
    LogScanned,
    LogsDoubted,
)
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.broker_authentication import BrokerName
from minibroker.runtime.broker_dialer import BrokerDialer, Credentials
from minibroker.runtime.descriptor_shares import share_out
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import Coordination, CoordinationError, DiskError, NetworkError, Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from minibroker.runtime.server.server import RpcServer, ServerLimits
from minibroker.runtime.server.server_limits import BROKER_PLACES

log = logging.getLogger("minibroker.broker")

SHUTDOWN_STEP_MS = 10_000
"""Limit for each step of a stop; the next start recovers what is left undone."""


ENVIRONMENT_ERRORS = (
    RegistrationError,
    LogDirectoryError,
    DiskError,
    NetworkError,
    CoordinationError,
    UnreadableSettings,
)
"""The environment's faults that end a broker, each with its cure in the text."""


class ControllerCandidate(ControllerRole, Protocol):
    """The controller side of this process, as its broker sees it."""

    @property
    def is_active(self) -> bool: ...
    async def run(self) -> None: ...
    def registered(self, broker_epoch: int, incarnation_id: str) -> None: ...
    def session_lost(self) -> None: ...


MakeController = Callable[[Coordination, BrokerDialer, "Broker", Observer], ControllerCandidate]


class Broker:
    """One broker, from start to stop. Use: `await start()`, `await serve(stop)`, `await stop()`."""

    def __init__(self, config: BrokerConfig, runtime: Runtime, make_controller: MakeController) -> None:
        self.config = config
        self.runtime = runtime
        self.counters = BrokerCounters()
        self.events = RecentEvents(runtime.observer, runtime.clock)
        self._make_controller = make_controller
        self.loads_logs = False
        """From here on a start changes the disk, and runs to its end."""
        self.coordination: Coordination
        self._noted_changes: NotedChanges
        self.registration: Registration
        self.secret: SharedSecret
        self.log_directory: LogDirectory
        self.manager: ReplicaManager
        self.server: RpcServer
        self.dialer = BrokerDialer(runtime.network, runtime.random)
        self.controller: ControllerCandidate
        self.image: MetadataImage
        self.witness: WitnessWriter
        self._handlers: RequestHandlers
        self._produce: ProduceHandler
        self._dynamic_config: DynamicConfig
        self._producer_ids: ProducerIds
        self._link: ControllerLink
        self._http: HttpEndpoint | None = None

    # ------------------------------------------------------------------------------------------------------- start
    async def start(self) -> None:
        """Start up to a registered, serving broker. Raises RegistrationError, LogDirectoryError, AddressInUse,
        DiskError, each with the cure in its message."""
        config = self.config
        for warning in warnings(config):
            log.warning("%s", warning)
        known_cluster_id, directory_id = read_identity(self.runtime.disk, config.log_dir, config.broker_id)
        self._noted_changes = NotedChanges(self.runtime.disk, config.log_dir, config.broker_id, self.events)
        self._noted_changes.read()
        self.coordination = await open_session(
            self.runtime.open_coordination,
            config.zookeeper_connect,
            config.zookeeper_session_timeout_ms,
            config.zookeeper_connection_timeout_ms,
        )
        identity = BrokerIdentity(
            broker_id=config.broker_id,
            directory_id=directory_id or "",
            incarnation_id=draw_id(self.runtime.random),
            cluster_id=known_cluster_id,
        )
        self.registration = Registration(
            self.coordination,
            self.runtime.clock,
            identity,
            self.runtime.random,
            self.events,
            on_registered=self._on_registered,
            on_epoch_ended=self._stop_serving,
            on_fenced=self._stop_serving,
            require_known_changes=self._noted_changes.require_known,
        )
        cluster_id = await self.registration.prepare(config.zookeeper_connection_timeout_ms)
        self.secret = SharedSecret(self.coordination, self.runtime.random, self.events, on_changed=self._identify)
        await self.registration.retrying(self.secret.agree, config.zookeeper_connection_timeout_ms)
        self._dynamic_config = DynamicConfig(self.coordination, config, self.events)
        self.config = await self._dynamic_config.start()
        self.loads_logs = True
        await self._open_log_directory(cluster_id)
        self.registration.identity = replace(identity, directory_id=self.log_directory.directory_id)
        self._wire(cluster_id)
        await self._listen()

    async def _open_log_directory(self, cluster_id: str) -> None:
        config = self.config
        self.log_directory = await LogDirectory.open(
            self.runtime.disk,
            self.runtime.clock,
            config.log_dir,
            config.broker_id,
            cluster_id,
            log_config(resolve_topic_config(config, {})),
            self._log_loaded,
            rng=self.runtime.random,
            tail_cache=TailCache(config.log_tail_cache_bytes),
            incarnation_id=self.registration.incarnation_id,
            segments=WarmSegments(share_out(self.runtime.open_files_max, config.max_connections).log_files),
            observer=self.events,
        )
        doubt = self.log_directory.wholeness.doubt
        if doubt is not None:
            self.events.notify(LogsDoubted(path=self.log_directory.path, reason=doubt))

    def _wire(self, cluster_id: str) -> None:
        config, runtime = self.config, self.runtime
        shares = share_out(runtime.open_files_max, config.max_connections, len(self.log_directory.logs))
        if shares.shortage is not None:
            log.warning("%s", shares.shortage)
        self.image = MetadataImage(config.broker_id, cluster_id, self.counters)
        limits = ServerLimits(
            frame_max_bytes=config.socket_request_max_bytes,
            receive_budget_bytes=config.queued_max_request_bytes,
            broker_reserve_bytes=min(BROKER_RESERVE_BYTES, config.queued_max_request_bytes // 2),
            connections_max=shares.connections,
            broker_places=BROKER_PLACES,
            idle_deadline_ms=config.connections_max_idle_ms,
        )
        self.server = RpcServer(runtime.network, self._handle, limits, self.events)
        self.manager = ReplicaManager(
            config=config,
            log_directory=self.log_directory,
            registration=self.registration,
            image=self.image,
            dialer=self.dialer,
            counters=self.counters,
            reply_room=self.server.reply_room,
            observer=self.events,
        )
        self.manager.load()
        self.witness = WitnessWriter(self.manager, self.coordination, runtime.clock)
        self._produce = ProduceHandler(
            self.manager.partitions.get,
            self.image.leader_hint,
            lambda tp: self.image.knows_partition(tp.topic, tp.partition),
            self.manager.now_ms,
            self.counters,
        )
        self.controller = self._make_controller(self.coordination, self.dialer, self, self.events)
        self._wire_handlers()
        self._link = ControllerLink(
            dialer=self.dialer,
            broker_id=config.broker_id,
            broker_epoch=lambda: self.registration.broker_epoch,
            controller_address=self.manager.controller_address,
            offline_partitions=self.manager.offline_partitions,
            leads=self._leads,
            request_timeout_ms=min(config.request_timeout_ms, SHUTDOWN_STEP_MS),
            observer=self.events,
        )
        self.server.after_requests = self.manager.fetches.flush
        self.server.on_connection_closed = self._handlers.connection_closed
        self.manager.disk.on_changed = self._link.replicas_changed
        self.manager.disk.on_recovered = self._link.replicas_recovered
        self._dynamic_config.on_change = self.manager.reconfigure

    def _wire_handlers(self) -> None:
        config, runtime = self.config, self.runtime
        self._producer_ids = ProducerIds(self.coordination, config.broker_id, runtime.clock)
        authentication = Authentication(
            broker_id=config.broker_id,
            secret=lambda: self.secret.key,
            listener_name=config.inter_broker_listener,
            broker_epoch=self.image.broker_epoch,
            source=runtime.random,
        )
        self._handlers = RequestHandlers(
            manager=self.manager,
            produce=self._produce,
            image=self.image,
            registration=self.registration,
            producer_ids=self._producer_ids,
            producer_name_admin=ProducerNameAdmin(self.coordination, config.broker_id),
            dynamic_config=self._dynamic_config,
            controller=self.controller,
            failure_confirmer=FailureConfirmer(
                network=runtime.network,
                image=self.image,
                refusals=self.manager.refusals,
                listener_name=config.inter_broker_listener,
                is_fenced=self.registration.is_fenced,
            ),
            authentication=authentication,
            controller_epochs=ControllerEpochs(self.coordination, lambda: self.image.controller_epoch),
            counters=self.counters,
            events=self.events,
            monotonic_ns=runtime.clock.monotonic_ns,
        )

    def failed_reads(self) -> list[str]:
        """APIs of queries that hit a bug of our own and got an error answer: for tests."""
        return self._handlers.failed_reads if hasattr(self, "_handlers") else []

    def _handle(self, request: IncomingRequest) -> None:
        self._handlers.handle(request)

    async def _listen(self) -> None:
        config = self.config
        ports: dict[str, int] = {}
        with naming_setting("listeners"):
            for endpoint in config.listeners:
                ports[endpoint.listener] = await self.server.start(endpoint.host, endpoint.port, endpoint.listener)
        if config.metrics_address is not None:
            routes = broker_routes(
                {"version": VERSION, "broker_id": str(config.broker_id)},
                self.counters,
                self.gauges,
                lambda: readiness(self.registration, self.image),
                self.runtime.clock.monotonic_ns,
            )
            self._http = HttpEndpoint(self.runtime.network, routes)
            with naming_setting("metrics.listener"):
                await self._http.start(*config.metrics_address)
        endpoints = advertised_endpoints(config, ports)
        await self.registration.register(endpoints, config.zookeeper_connection_timeout_ms)

    def gauges(self) -> BrokerGauges:
        """Counted now, for a scrape of the metrics."""
        is_controller, witness_age_ms = self.controller.is_active, self.witness.age_ms
        return read_gauges(self.manager, self.server, self.runtime.disk, is_controller, witness_age_ms)

    # ------------------------------------------------------------------------------------------------------- serve
    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises BrokerIdTaken, or the bug of our own that ended a task."""
        periodic_tasks = PeriodicTasks(self.manager, self._produce, self.runtime.clock)
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(self.registration.run(), name="registration"),
            asyncio.create_task(self.secret.run(), name="cluster-secret"),
            asyncio.create_task(self._dynamic_config.run(), name="dynamic-config"),
            asyncio.create_task(self.controller.run(), name="controller"),
            asyncio.create_task(self._link.run(), name="controller-link"),
            asyncio.create_task(periodic_tasks.run(), name="periodic_tasks"),
            asyncio.create_task(self.witness.run(), name="witness"),
            asyncio.create_task(self._note_changes(), name="noted-changes"),
        ]
        for task in tasks:
            end_process_on_bug(task, *ENVIRONMENT_ERRORS)
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            await self._hand_over()
            await self.manager.stop()  # no fetch after this: a new controller would add this broker to an ISR again
        finally:
            for task in [*tasks, stopped]:
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)

    async def _note_changes(self) -> None:
        await self._noted_changes.keep(
            self.coordination, self._changes, self._may_note_changes, self.manager.disk.failed
        )

    def _changes(self) -> int:
        """Of what ZooKeeper holds, as far as this broker has made them or learned of them."""
        return self.image.changes + self._dynamic_config.changes + self._producer_ids.changes

    def _may_note_changes(self) -> bool:
        return not self.log_directory.offline and not self.registration.is_fenced()

    async def _hand_over(self) -> None:
        """Move leaderships while clients are still answered, so that they never see a dead leader."""
        config = self.config
        if not config.controlled_shutdown_enable or self.registration.is_fenced():
            return
        self.events.notify(HandoverBegun())
        try:
            async with asyncio.timeout(SHUTDOWN_STEP_MS / 1000):
                await self._link.shut_down(
                    config.controlled_shutdown_max_retries, config.controlled_shutdown_retry_backoff_ms
                )
        except TimeoutError:
            reason = f"the controller did not take them within {SHUTDOWN_STEP_MS} ms"
            self.events.notify(HandoverUnfinished(reason=reason))

    # -------------------------------------------------------------------------------------------------------- stop
    async def stop(self) -> None:
        """Close what `start` opened so far. The clean marker is written only if everything succeeds."""
        is_noted = True
        if hasattr(self, "_handlers"):
            if self._http is not None:
                await self._http.stop()
            await self.server.stop()
            await self._handlers.stop()
            await self.manager.stop()
            await self.witness.conclude()
            is_noted = self._may_note_changes() and await self._noted_changes.conclude(self.coordination, self._changes)
            is_noted = is_noted or self.image.changes == 0  # without an order, this start was in no ISR
        if hasattr(self, "log_directory"):
            high_watermarks = self.manager.high_watermarks() if hasattr(self, "manager") else {}
            epoch = self.registration.broker_epoch
            await self.log_directory.close(
                clean=True, high_watermarks=high_watermarks, broker_epoch=epoch, is_proof=is_noted
            )
        if hasattr(self, "coordination"):
            await self.coordination.close()
        self.events.notify(BrokerStopped(broker=self.config.broker_id))

    # ---------------------------------------------------------------------------------------------------- callbacks
    def _identify(self) -> None:
        """From now on, authenticate to other brokers with the current registration and secret."""
        broker_epoch = self.registration.broker_epoch
        if broker_epoch is not None:
            incarnation_id = self.registration.incarnation_id
            name = BrokerName(broker_id=self.config.broker_id, broker_epoch=broker_epoch, incarnation_id=incarnation_id)
            self.dialer.registered(Credentials(name=name, secret=self.secret.key))

    def _on_registered(self, broker_epoch: int) -> None:
        self._identify()
        self.manager.unfence()
        self.controller.registered(broker_epoch, self.registration.incarnation_id)
        self._link.registered()

    def _stop_serving(self) -> None:
        """The broker epoch has ended, or may have ended unnoticed."""
        self.manager.fence()
        if self.registration.broker_epoch is None:
            self.dialer.unregistered()
            self.controller.session_lost()

    # ---------------------------------------------------------------- for the controller candidate of this process
    def count_broker_failure(self) -> None:
        self.counters.dead_brokers += 1

    def note_refusal(self, broker_id: int, broker_epoch: int) -> None:
        self.manager.refusals.note(broker_id, broker_epoch)

    def observe_removal(self) -> None:
        self.registration.observe_removal()

    def highest_controller_epoch(self) -> int:
        return self.image.controller_epoch

    # -------------------------------------------------------------------------------------------------------- parts
    def _log_loaded(self, done: int, total: int, partition: TopicPartition, report: RecoveryReport) -> None:
        """An event for each log that was scanned, and for every hundredth log."""
        if report.bytes_scanned or done % 100 == 0:
            topic, number = partition
            scanned = {"scanned_bytes": report.bytes_scanned, "cut_bytes": report.bytes_cut}
            self.events.notify(LogScanned(topic=topic, partition=number, loaded=done, logs=total, **scanned))

    def _leads(self, name: TopicPartition) -> bool:
        partition = self.manager.partitions.get(name)
        return partition is not None and partition.state.is_leader
