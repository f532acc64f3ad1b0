"""The active controller: from a won election until it is deposed.

Owns: the queue of events and the one task that takes them, the watches, and the performing of effects. Leaves to
others: decisions (`steps`), how the election was won (`controller_election`), and why this controller ends.

Theory (replication rules 9.2). One event at a time: while its writes are under way, nothing else is decided. A watch
only says that something has changed, so it queues a read; the read finds what has changed, and sets a new watch. The
controller ends with an exception: `Deposed`, or cancellation by the owner when the session is over. Whatever waits in
the queue then is dropped, and waiting requests get NOT_CONTROLLER.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from minibroker.controller.broker_channel import BrokerChannel
from minibroker.controller.cluster_reader import Deposed, Resigned
from minibroker.controller.cluster_store import ClusterStore
from minibroker.controller.controller_election import ControllerFence
from minibroker.controller.core import change_text
from minibroker.controller.core.accepted_loss import Logs
from minibroker.controller.core.broker_answers import events_of
from minibroker.controller.core.controller_state import ControllerSettings, ControllerState, Deletion, RegisteredBroker
from minibroker.controller.core.events import (
    AlterPartitionReceived,
    Answer,
    AnswersDue,
    AskLogs,
    BeginDeletion,
    BrokerAnswered,
    BrokerRefused,
    BrokerSilent,
    CloseChannel,
    ConfirmFailure,
    ContinueWith,
    ControlledShutdownReceived,
    ControllerEffect,
    ControllerEvent,
    DeletionBegun,
    DeletionsRequested,
    EraseTopic,
    FailureConfirmed,
    FailureUnconfirmed,
    LeadershipsWritten,
    LivenessConnectionHeld,
    LivenessConnectionLost,
    LogsReceived,
    OpenChannel,
    RebalanceDue,
    RegistrationsChanged,
    Report,
    Resign,
    Send,
    TookOver,
    TopicErased,
    Unregister,
    WriteLeaderships,
)
from minibroker.controller.core.instructions import ControllerIdentity, live_brokers
from minibroker.controller.core.steps import step
from minibroker.controller.detection.failure_inquiry import ConfirmerAddress, first_to_confirm
from minibroker.controller.detection.liveness_connection import LivenessEvents, hold_liveness_connection
from minibroker.controller.log_inquiry import ask_logs
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.events.event_base import ClusterEvent
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import AlterPartitionRequest, ControlledShutdownRequest, Request, Response
from minibroker.runtime.broker_dialer import BrokerDialer
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import Coordination

EVENTS_MAX = 10_000
"""Requests that may wait; a broker has one in flight at a time, so only clients could queue more."""
GATHERING_SECONDS = 0.1
"""How long a new controller waits for registered brokers that do not answer. It elects at once when the last one has
answered. Without the wait, the first broker to answer would lead everything."""
WATCH_SECONDS = 0.5
"""How often the controller checks which brokers owe an answer."""
SILENT_SECONDS = 1.0
"""A broker that owes an answer for this long is not elected. Brokers answer orders from memory, and those that create
many logs within some hundred milliseconds."""
FIRST_REBALANCE_SECONDS = 5.0
"""Kafka's value; brokers that start together should all be registered before leaders are moved back."""

logger = logging.getLogger("minibroker.controller")

Job: TypeAlias = Callable[[], Awaitable[None]]
"""One item of the queue."""


class ActiveControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of the active controller, except what decisions depend on."""

    inter_broker_listener: str
    rebalance_interval_seconds: int | None
    """None: leaders are not moved back to preferred replicas automatically."""
    request_timeout_ms: int
    default_min_insync_replicas: int
    detects_lost_connections: bool


class ActiveController:
    """Made when an election is won; the winner awaits `run`."""

    def __init__(
        self,
        fence: ControllerFence,
        settings: ControllerSettings,
        active_settings: ActiveControllerSettings,
        coordination: Coordination,
        dialer: BrokerDialer,
        may_send: Callable[[], bool],
        observer: Observer,
    ) -> None:
        self._observer = observer
        self.state = ControllerState(settings=settings, controller_epoch=fence.controller_epoch)
        self.store = ClusterStore(coordination, fence)
        self.store.observer = observer
        self._settings = active_settings
        self._dialer = dialer
        self._may_send = may_send
        self._sender = ControllerIdentity(controller_id=settings.controller_id, controller_epoch=fence.controller_epoch)
        self._queue: asyncio.Queue[Job] = asyncio.Queue()
        self._queued_reads: set[str] = set()
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._next_request_id = 0
        self._channels: dict[int, tuple[BrokerChannel, list[asyncio.Task[None]]]] = {}
        self._inquiries: dict[int, asyncio.Task[None]] = {}
        self._erased: dict[str, asyncio.Event] = {}
        self._gathered = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._reports: list[ClusterEvent] = []
        self.is_over = False
        self.on_broker_failure: Callable[[], None] = lambda: None

    # ------------------------------------------------------------------------------------------------- the one task
    async def run(self) -> None:
        """Take over, then handle events. Raises an ExceptionGroup of Deposed, or of bugs."""
        try:
            async with asyncio.TaskGroup() as self._group:
                await self._take_over()
                self._group.create_task(self._watch_answers(), name="controller-answers")
                if self._settings.rebalance_interval_seconds is not None:
                    self._group.create_task(self._rebalance(self._settings.rebalance_interval_seconds))
                while True:
                    job = await self._queue.get()
                    await job()
                    self._send_reports()
        except GeneratorExit:
            self._reports.clear()  # the process is gone, and its ports are closed
            raise
        finally:
            self._send_reports()
            self.is_over = True
            self._gathered.set()
            for event in self._erased.values():
                event.set()
            for future in self._waiting.values():
                if not future.done():
                    future.set_result(Response(error_code=ErrorCode.NOT_CONTROLLER))

    async def _take_over(self) -> None:
        """Failover (replication rules 9.3): watches first, then all facts, then one comparison of everything."""
        state = self.state
        await self._check_controller_epoch()
        state.brokers = await self._read_brokers()
        names = await self.store.read_topic_names(self._watcher("topics", self._reread_topics))
        markers = await self.store.read_deletions(self._watcher("deletions", self._reread_deletions))
        found = await self.store.read_topics(names)
        state.topics, state.leaderships, state.unreadable = found.added, found.leaderships, found.unreadable
        begun = await self.store.read_begun(markers)
        deletions = {name: Deletion(is_started=name in begun, is_recorded=name in begun) for name in markers}
        state.deletions = {name: deletions[name] for name in markers if name in state.topics}
        self._observer.notify(change_text.controller_elected(state, len(markers)))
        await self.process(TookOver())
        await self.process(DeletionsRequested(topics=tuple(markers)))
        self._queue_answers_due()
        self._send_reports()

    def _queue_answers_due(self) -> None:
        asyncio.get_running_loop().call_later(
            GATHERING_SECONDS, self._queue.put_nowait, lambda: self.process(AnswersDue())
        )

    async def gathered(self) -> None:
        """Return when this controller may elect: brokers have had time to answer."""
        await self._gathered.wait()

    async def process(self, event: ControllerEvent) -> None:
        """Let the core decide, and perform what it decided, in order."""
        effects = step(self.state, event)
        if not self.state.is_gathering:
            self._gathered.set()
        for effect in effects:
            await self._perform(effect)

    async def _perform(self, effect: ControllerEffect) -> None:
        match effect:
            case WriteLeaderships():
                written = await self.store.write_leaderships(effect.changes)
                self._describe(written)
                await self.process(written)
            case Send():
                if effect.broker_id in self._channels:
                    self._channels[effect.broker_id][0].put(effect.live_brokers, effect.instructions)
            case ContinueWith():
                await self.process(effect.event)
            case OpenChannel():
                self._open_channel(effect.broker)
            case CloseChannel():
                self._close_channel(effect.broker_id)
            case Answer():
                self._answer(effect.request_id, effect.response)
            case BeginDeletion():
                await self.store.begin_deletion(effect.topic)
                await self.process(DeletionBegun(topic=effect.topic))
            case EraseTopic():
                await self.store.erase_topic(effect.topic)
                await self.process(TopicErased(topic=effect.topic))
                self._erased.pop(effect.topic, asyncio.Event()).set()
            case ConfirmFailure():
                self._inquire(effect)
            case AskLogs():
                self._ask_logs(effect)
            case Resign():
                raise Resigned(effect.reason)
            case Unregister():
                await self.store.unregister(effect.broker_id, effect.broker_epoch)
                self.on_broker_failure()
                await self._without(effect.broker_id, effect.broker_epoch)
                await self._reread_brokers()
            case Report():
                self._reports.append(effect.event)
            case _:
                raise AssertionError(f"unknown effect {effect}")

    # ------------------------------------------------------------------------------------------------------ watches
    def _watcher(self, name: str, read: Job) -> Callable[[], None]:
        """A watcher that queues one read, however often it is called before that read runs."""

        def on_change() -> None:
            if name not in self._queued_reads:
                self._queued_reads.add(name)
                self._queue.put_nowait(read)

        return on_change

    async def _check_controller_epoch(self) -> None:
        self._queued_reads.discard("fence")
        if not await self.store.is_still_active(self._watcher("fence", self._check_controller_epoch)):
            raise Deposed("/controller is no longer this broker's")

    async def _read_brokers(self) -> dict[int, RegisteredBroker]:
        self._queued_reads.discard("brokers")
        brokers = await self.store.read_brokers(self._watcher("brokers", self._reread_brokers))
        reachable = {each: brokers[each] for each in sorted(brokers) if self._address(brokers[each]) is not None}
        for broker_id in sorted(brokers.keys() - reachable.keys()):
            listener = self._settings.inter_broker_listener
            logger.error(
                "broker %d is ignored: it has no listener %s (inter.broker.listener.name)", broker_id, listener
            )
        return reachable

    async def _reread_brokers(self) -> None:
        await self.process(RegistrationsChanged(brokers=await self._read_brokers()))

    async def _without(self, broker_id: int, broker_epoch: int) -> None:
        """Handle the end of this registration first, even if the broker has registered again since."""
        if self.state.is_registered_as(broker_id, broker_epoch):
            left = {each: broker for each, broker in self.state.brokers.items() if each != broker_id}
            await self.process(RegistrationsChanged(brokers=left))

    async def _reread_topics(self) -> None:
        self._queued_reads.discard("topics")
        names = await self.store.read_topic_names(self._watcher("topics", self._reread_topics))
        added = [name for name in names if name not in self.state.topics]
        removed = tuple(sorted(name for name in self.state.topics if name not in names))
        found = await self.store.read_topics(added)
        await self.process(msgspec.structs.replace(found, removed=removed))

    async def _reread_deletions(self) -> None:
        self._queued_reads.discard("deletions")
        markers = await self.store.read_deletions(self._watcher("deletions", self._reread_deletions))
        await self.process(DeletionsRequested(topics=tuple(markers)))

    async def _rebalance(self, interval_seconds: int) -> None:
        await asyncio.sleep(FIRST_REBALANCE_SECONDS)
        while True:
            self._queue.put_nowait(lambda: self.process(RebalanceDue()))
            await asyncio.sleep(interval_seconds)

    # ----------------------------------------------------------------------------------------------------- requests
    async def ask(self, request: AlterPartitionRequest | ControlledShutdownRequest) -> Response:
        """Queue a request that the core answers, and wait."""
        request_id, future = self._new_request()
        event: ControllerEvent
        if isinstance(request, AlterPartitionRequest):
            event = AlterPartitionReceived(request_id=request_id, request=request)
        else:
            event = ControlledShutdownReceived(request_id=request_id, request=request)
        return await self._wait(request_id, future, lambda: self.process(event))

    async def run_queued(self, work: Callable[[], Awaitable[Response]]) -> Response:
        """Queue work of an administrator's request, and wait."""
        request_id, future = self._new_request()

        async def job() -> None:
            self._answer(request_id, await work())

        return await self._wait(request_id, future, job)

    async def erased(self, topic: str) -> None:
        """Return when this topic, which is being deleted, is gone, or this controller has ended."""
        await self._erased.setdefault(topic, asyncio.Event()).wait()

    async def all_answered(self) -> None:
        """Return when every broker has answered what was queued for it up to now."""
        await asyncio.gather(*(channel.settled() for channel, _ in list(self._channels.values())))

    def _new_request(self) -> tuple[int, asyncio.Future[Response]]:
        self._next_request_id += 1
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        return self._next_request_id, future

    async def _wait(self, request_id: int, future: asyncio.Future[Response], job: Job) -> Response:
        if len(self._waiting) >= EVENTS_MAX:
            text = f"{EVENTS_MAX} requests wait for the controller already"
            return Response(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=text)

        async def unless_given_up() -> None:
            if not future.done():
                await job()

        self._waiting[request_id] = future
        self._queue.put_nowait(unless_given_up)
        try:
            return await future
        finally:
            self._waiting.pop(request_id, None)

    def _answer(self, request_id: int, response: Response) -> None:
        future = self._waiting.get(request_id)
        if future is not None and not future.done():
            future.set_result(response)

    async def logs_of(self, broker: RegisteredBroker, partitions: Sequence[TopicPartition]) -> Logs:
        """The state of this broker's logs at this moment. Waits until the broker answers."""
        address = self._address(broker)
        assert address is not None, f"no address of {broker}"
        broker_id, epoch = broker.broker_id, broker.broker_epoch
        return {broker_id: await ask_logs(self._dialer, self._client_id, broker_id, address, epoch, partitions)}

    # ----------------------------------------------------------------------------------------------------- channels
    def _address(self, broker: RegisteredBroker) -> tuple[str, int] | None:
        for name, host, port in broker.listeners:
            if name == self._settings.inter_broker_listener:
                return host, port
        return None

    def _open_channel(self, broker: RegisteredBroker) -> None:
        assert self._group is not None
        assert broker.broker_id not in self._channels, f"broker {broker.broker_id} has a channel already"
        address = self._address(broker)
        assert address is not None, f"no address of {broker}"
        channel = BrokerChannel(
            self._dialer,
            self._sender,
            broker,
            address,
            may_send=self._may_send,
            on_answer=self._on_answer,
            request_timeout_ms=self._settings.request_timeout_ms,
        )
        name = f"controller-channel-{broker.broker_id}"
        tasks = [self._group.create_task(channel.run(), name=name)]
        if self._settings.detects_lost_connections and broker.broker_id != self._sender.controller_id:
            events = self._liveness_events(broker)
            liveness = hold_liveness_connection(self._dialer.network, address, self._client_id, events)
            tasks.append(self._group.create_task(liveness, name=f"controller-liveness-{broker.broker_id}"))
        self._channels[broker.broker_id] = channel, tasks

    def _close_channel(self, broker_id: int) -> None:
        _, tasks = self._channels.pop(broker_id)
        for task in tasks:
            task.cancel()

    @property
    def _client_id(self) -> str:
        return f"controller-{self._sender.controller_id}"

    def _on_answer(self, broker: RegisteredBroker, request: Request, response: Response) -> None:
        if broker.broker_id in self.state.unresponsive:
            answered = BrokerAnswered(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
            self._queue.put_nowait(lambda: self.process(answered))
        for event in events_of(broker, request, response):
            self._queue.put_nowait(lambda event=event: self.process(event))  # type: ignore[misc]

    async def _watch_answers(self) -> None:
        """Count how long each broker owes an answer, in ticks, so that time in which this process stood still does not
        count. Probe brokers that have long been sent nothing."""
        probe_ticks = self.state.settings.answer_seconds_max / 2 / WATCH_SECONDS
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for channel, _ in list(self._channels.values()) if self._may_send() else ():
                channel.ticks += 1
                if channel.silent_ticks * WATCH_SECONDS >= SILENT_SECONDS:
                    self._queue.put_nowait(partial(self._on_silence, channel))
                elif not channel.waits_for_answer and channel.ticks >= probe_ticks:
                    channel.put(live_brokers(self.state), ())

    async def _on_silence(self, channel: BrokerChannel) -> None:
        """Its answer may have come while this waited in the queue, behind a slow write."""
        of, seconds = channel.broker, channel.silent_ticks * WATCH_SECONDS
        if seconds >= SILENT_SECONDS:
            await self.process(BrokerSilent(broker_id=of.broker_id, broker_epoch=of.broker_epoch, seconds=seconds))

    def _ask_logs(self, effect: AskLogs) -> None:
        """The inquiry ends with the registration that it goes to."""
        assert self._group is not None
        broker_id, epoch = effect.broker.broker_id, effect.broker.broker_epoch
        address = self._address(effect.broker)
        if address is None or broker_id not in self._channels:
            return

        async def ask() -> None:
            logs = await ask_logs(self._dialer, self._client_id, broker_id, address, epoch, effect.partitions)
            received = LogsReceived(broker_id=broker_id, broker_epoch=epoch, logs=logs)
            self._queue.put_nowait(lambda: self.process(received))

        tasks = self._channels[broker_id][1]
        tasks[:] = [each for each in tasks if not each.done()]
        tasks.append(self._group.create_task(ask(), name=f"logs-of-{broker_id}"))

    # -------------------------------------------------------------------------------------------- failure detection
    def _liveness_events(self, broker: RegisteredBroker) -> LivenessEvents:
        """What happens to the liveness connection of this registration, as events in the queue."""
        broker_id, epoch = broker.broker_id, broker.broker_epoch
        now = asyncio.get_running_loop().time

        def put(event: ControllerEvent) -> None:
            self._queue.put_nowait(lambda: self.process(event))

        def on_refused(attempt: int) -> None:
            put(BrokerRefused(broker_id=broker_id, broker_epoch=epoch, attempt=attempt))

        return LivenessEvents(
            on_held=lambda: put(LivenessConnectionHeld(broker_id=broker_id, broker_epoch=epoch)),
            on_lost=lambda: put(LivenessConnectionLost(broker_id=broker_id, broker_epoch=epoch, at_seconds=now())),
            on_refused=on_refused,
            on_silent=on_refused,
        )

    def _inquire(self, effect: ConfirmFailure) -> None:
        """One inquiry at a time about each broker."""
        under_way = self._inquiries.get(effect.broker.broker_id)
        if (under_way is not None and not under_way.done()) or not self._may_send():
            return
        assert self._group is not None
        task = self._group.create_task(self._ask_confirmers(effect), name=f"inquiry-{effect.broker.broker_id}")
        self._inquiries[effect.broker.broker_id] = task

    async def _ask_confirmers(self, effect: ConfirmFailure) -> None:
        loop = asyncio.get_running_loop()
        begun, broker_id, epoch = loop.time(), effect.broker.broker_id, effect.broker.broker_epoch
        addresses = {each.broker_id: self._address(each) for each in effect.confirmers}
        confirmers = [ConfirmerAddress(broker_id=each, address=at) for each, at in addresses.items() if at is not None]
        confirmer_id = await first_to_confirm(self._dialer, self._client_id, confirmers, broker_id, epoch)
        event: ControllerEvent = FailureUnconfirmed(broker_id=broker_id, broker_epoch=epoch, attempt=effect.attempt)
        if confirmer_id is not None:
            host, port = self._address(effect.broker) or ("?", 0)
            event = FailureConfirmed(
                broker_id=broker_id,
                broker_epoch=epoch,
                confirmer_id=confirmer_id,
                address=f"{host}:{port}",
                took_ms=round((loop.time() - begun) * 1000),
            )
        self._queue.put_nowait(lambda: self.process(event))

    # ---------------------------------------------------------------------------------------------------------- log
    def _describe(self, event: LeadershipsWritten) -> None:
        for change in event.written:
            default = self._settings.default_min_insync_replicas
            wanted = change_text.min_insync_replicas(self.state, change.partition, default)
            self._reports.append(change_text.leadership_changed(change, wanted))
        self._reports += [change_text.state_reread(each, event.lost[each]) for each in sorted(event.lost)]

    def _send_reports(self) -> None:
        """After the decisions are sent: a thousand elections are a thousand events."""
        reports, self._reports = self._reports, []
        for event in reports:
            self._observer.notify(event)
