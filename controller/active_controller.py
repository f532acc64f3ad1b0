"""The active controller: from a won election until it is deposed.

Owns: the queue of events and the one task that takes them, the watches, and the performing of effects. Leaves to
others: decisions (`steps`), the brokers (`controller_channels`), how the election was won (`controller_election`), and
why this controller ends.

Theory (replication rules, section 9). One event at a time: while its writes are under way, nothing else is decided. A
watch only says that something has changed, so it queues a read; the read finds what has changed, and sets a new watch.
The controller ends with an exception: `Deposed`, or cancellation by the owner when the session is over. Whatever waits
in the queue then is dropped, and waiting requests get NOT_CONTROLLER; an administrator's that was begun gets
REQUEST_TIMED_OUT.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import msgspec

from minibroker.controller.broker_channel import BrokerChannel
from minibroker.controller.cluster_reader import Deposed, Resigned
from minibroker.controller.cluster_store import ClusterStore
from minibroker.controller.controller_channels import ChannelSettings, ControllerChannels, silence_of
from minibroker.controller.controller_election import ControllerFence
from minibroker.controller.core import change_text
from minibroker.controller.core.controller_state import ControllerSettings, ControllerState, Deletion, RegisteredBroker
from minibroker.controller.core.events import (
    AlterPartitionReceived,
    Answer,
    AnswersDue,
    AskLogs,
    BeginDeletion,
    CloseChannel,
    ConfirmFailure,
    ContinueWith,
    ControlledShutdownReceived,
    ControllerEffect,
    ControllerEvent,
    DeletionBegun,
    DeletionsRequested,
    EraseTopic,
    LeadershipsWritten,
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
from minibroker.controller.core.steps import step
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.events.event_base import ClusterEvent
from minibroker.protocol.wire.messages import AlterPartitionRequest, ControlledShutdownRequest, Response
from minibroker.runtime.broker_dialer import BrokerDialer
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import Coordination

EVENTS_MAX = 10_000
"""Requests that may wait; a broker has one in flight at a time, so only clients could queue more."""
GATHERING_SECONDS = 0.1
"""How long a new controller waits for registered brokers that do not answer. It elects at once when the last one has
answered. Without the wait, the first broker to answer would lead everything."""
FIRST_REBALANCE_SECONDS = 5.0
"""Kafka's value; brokers that start together should all be registered before leaders are moved back."""

logger = logging.getLogger("minibroker.controller")

Job: TypeAlias = Callable[[], Awaitable[None]]
"""One item of the queue."""


class ActiveControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of the active controller, except what decisions depend on."""

    channels: ChannelSettings
    rebalance_interval_seconds: int | None
    """None: leaders are not moved back to preferred replicas automatically."""
    default_min_insync_replicas: int


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
        *,
        on_broker_failure: Callable[[], None],
        on_broker_gone: Callable[[str], None],
    ) -> None:
        """`on_broker_failure` is called when a broker was unregistered before its session ended; `on_broker_gone`: see
        `ClusterReader`."""
        self._observer = observer
        self.state = ControllerState(settings=settings, controller_epoch=fence.controller_epoch)
        self.store = ClusterStore(coordination, fence, observer, on_broker_gone)
        self._settings = active_settings
        self.channels = ControllerChannels(
            self.state,
            dialer,
            may_send,
            active_settings.channels,
            on_event=lambda event: self._queue.put_nowait(lambda: self.process(event)),
            on_silence=lambda channel: self._queue.put_nowait(partial(self._on_silence, channel)),
        )
        self._queue: asyncio.Queue[Job] = asyncio.Queue()
        self._queued_reads: set[str] = set()
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._next_request_id = 0
        self._erased: dict[str, asyncio.Event] = {}
        self._gathered = asyncio.Event()
        self._reports: list[ClusterEvent] = []
        self.is_over = False
        self._on_broker_failure = on_broker_failure

    # ------------------------------------------------------------------------------------------------- the one task
    async def run(self) -> None:
        """Take over, then handle events. Raises an ExceptionGroup of Deposed, or of bugs."""
        try:
            async with asyncio.TaskGroup() as group:
                self.channels.group = group
                await self._take_over()
                group.create_task(self.channels.watch_answers(), name="controller-answers")
                if self._settings.rebalance_interval_seconds is not None:
                    group.create_task(self._rebalance(self._settings.rebalance_interval_seconds))
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
        """Failover (replication rules, section 9): watches first, then all facts, then one comparison of everything."""
        state = self.state
        await self._check_controller_epoch()
        state.brokers = await self._read_brokers()
        names = await self.store.read_topic_names(self._watcher("topics", self._reread_topics))
        markers = await self.store.read_deletions(self._watcher("deletions", self._reread_deletions))
        found = await self.store.without_contradicted_states(await self.store.read_topics(names), markers)
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
                self.channels.send(effect)
            case ContinueWith():
                await self.process(effect.event)
            case OpenChannel():
                self.channels.open(effect.broker)
            case CloseChannel():
                self.channels.close(effect.broker_id)
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
                self.channels.confirm_failure(effect)
            case AskLogs():
                self.channels.ask_for_logs(effect)
            case Resign():
                raise Resigned(effect.reason)
            case Unregister():
                await self.store.unregister(effect.broker_id, effect.broker_epoch)
                self._on_broker_failure()
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
        reachable = {
            each: brokers[each] for each in sorted(brokers) if self.channels.address(brokers[each]) is not None
        }
        for broker_id in sorted(brokers.keys() - reachable.keys()):
            listener = self._settings.channels.inter_broker_listener
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

    async def _on_silence(self, channel: BrokerChannel) -> None:
        """Its answer may have come while this waited in the queue, behind a slow write."""
        if (silent := silence_of(channel)) is not None:
            await self.process(silent)

    async def _reread_topics(self) -> None:
        self._queued_reads.discard("topics")
        names = await self.store.read_topic_names(self._watcher("topics", self._reread_topics))
        added = [name for name in names if name not in self.state.topics]
        removed = tuple(sorted(self.state.topics.keys() - names))
        for name in removed:
            if name not in self.state.deletions:
                self.store.report_removed_topic(name, self.state.topics[name].topic_id)
        found = await self.store.without_contradicted_states(await self.store.read_topics(added), self.state.deletions)
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
            if request.offline_partitions is not None:
                self.channels.note_report(request.broker_id, request.broker_epoch)
        return await self._wait(request_id, future, lambda: self.process(event))

    async def run_queued(self, work: Callable[[], Awaitable[Response]]) -> Response:
        """Queue work of an administrator's request, and wait. NOT_CONTROLLER says that nothing of it was done."""
        request_id, future = self._new_request()

        async def job() -> None:
            try:
                answer = await work()
            except BaseException:
                text = "this controller ended while it did this; it may be done all the same"
                self._answer(request_id, Response(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=text))
                raise
            self._answer(request_id, answer)

        return await self._wait(request_id, future, job)

    async def erased(self, topic: str) -> None:
        """Return when this topic, which is being deleted, is gone, or this controller has ended."""
        await self._erased.setdefault(topic, asyncio.Event()).wait()

    def _new_request(self) -> tuple[int, asyncio.Future[Response]]:
        self._next_request_id += 1
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        return self._next_request_id, future

    async def _wait(self, request_id: int, future: asyncio.Future[Response], job: Job) -> Response:
        if self.is_over:
            return Response(error_code=ErrorCode.NOT_CONTROLLER)
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
