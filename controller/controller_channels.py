"""What the active controller sends to the registered brokers, and what it hears from them.

Owns: for each registration a channel for orders, a liveness connection, and the questions under way; how long each owes
an answer. Everything heard becomes an event. Leaves to others: when a channel is opened and closed, and all conclusions
(`steps`).
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence

import msgspec

from minibroker.controller.broker_channel import BrokerChannel
from minibroker.controller.core.accepted_loss import Logs
from minibroker.controller.core.broker_answers import events_of, offline_in
from minibroker.controller.core.control_requests import ControllerIdentity, live_brokers
from minibroker.controller.core.controller_state import ControllerState, RegisteredBroker, ReplicaLog
from minibroker.controller.core.events import (
    AskLogs,
    BrokerAnswered,
    BrokerRefused,
    BrokerSilent,
    ConfirmFailure,
    ControllerEvent,
    FailureConfirmed,
    FailureUnconfirmed,
    LivenessConnectionHeld,
    LivenessConnectionLost,
    LogsReceived,
    Send,
)
from minibroker.controller.core.restarted_members import needs_logs
from minibroker.controller.detection.failure_inquiry import ConfirmerAddress, first_to_confirm
from minibroker.controller.detection.liveness_connection import LivenessEvents, hold_liveness_connection
from minibroker.controller.log_inquiry import ask_logs
from minibroker.protocol.ids import BrokerEpoch, BrokerId, TopicPartition
from minibroker.protocol.wire.messages import Request, Response, UpdateMetadataResponse
from minibroker.runtime.broker_dialer import BrokerDialer

WATCH_SECONDS = 0.5
"""How often the controller checks which brokers owe an answer."""
SILENT_SECONDS = 1.0
"""A broker that owes an answer for this long is not elected. Brokers answer orders from memory, and those that create
many logs within some hundred milliseconds."""
UNAVAILABLE_SECONDS = 5.0
"""A broker tells when a replica is well again; this is for an answer that was on its way then, or that could not be
decoded."""


class ChannelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How brokers are reached."""

    inter_broker_listener: str
    request_timeout_ms: int
    detects_lost_connections: bool


class ControllerChannels:
    """Of one active controller."""

    def __init__(
        self,
        state: ControllerState,
        dialer: BrokerDialer,
        may_send: Callable[[], bool],
        settings: ChannelSettings,
        *,
        on_event: Callable[[ControllerEvent], None],
        on_silence: Callable[[BrokerChannel], None],
    ) -> None:
        """`state` is only read. `on_silence` is called again and again while a broker owes an answer."""
        self._state = state
        self._dialer = dialer
        self._may_send = may_send
        self._settings = settings
        self._on_event = on_event
        self._on_silence = on_silence
        self._sender = ControllerIdentity(
            controller_id=state.settings.controller_id, controller_epoch=state.controller_epoch
        )
        self._order_numbers = itertools.count(1)
        self._channels: dict[int, tuple[BrokerChannel, list[asyncio.Task[None]]]] = {}
        self._inquiries: dict[int, asyncio.Task[None]] = {}
        self.group: asyncio.TaskGroup | None = None
        """The tasks of the controller, which it sets when it begins: the channels end with them."""

    def address(self, broker: RegisteredBroker) -> tuple[str, int] | None:
        """Where brokers reach it; None if it has no such listener."""
        for name, host, port in broker.listeners:
            if name == self._settings.inter_broker_listener:
                return host, port
        return None

    def open(self, broker: RegisteredBroker) -> None:
        assert self.group is not None
        assert broker.broker_id not in self._channels, f"broker {broker.broker_id} has a channel already"
        address = self.address(broker)
        assert address is not None, f"no address of {broker}"
        channel = BrokerChannel(
            self._dialer,
            self._sender,
            broker,
            address,
            numbers=self._order_numbers,
            may_send=self._may_send,
            on_answer=self._on_answer,
            request_timeout_ms=self._settings.request_timeout_ms,
        )
        name = f"controller-channel-{broker.broker_id}"
        tasks = [self.group.create_task(channel.run(), name=name)]
        if self._settings.detects_lost_connections and broker.broker_id != self._sender.controller_id:
            events = self._liveness_events(broker)
            liveness = hold_liveness_connection(self._dialer.network, address, self._client_id, events)
            tasks.append(self.group.create_task(liveness, name=f"controller-liveness-{broker.broker_id}"))
        self._channels[broker.broker_id] = channel, tasks

    def close(self, broker_id: int) -> None:
        _, tasks = self._channels.pop(broker_id)
        for task in tasks:
            task.cancel()

    def send(self, effect: Send) -> None:
        """Queue orders; a broker without a channel gets none."""
        if effect.broker_id in self._channels:
            self._channels[effect.broker_id][0].put(effect.live_brokers, effect.orders)

    @property
    def _client_id(self) -> str:
        return f"controller-{self._sender.controller_id}"

    def _on_answer(self, channel: BrokerChannel, request: Request, response: Response) -> None:
        broker, is_overtaken = channel.broker, channel.reports_since_asked > 0
        if broker.broker_id in self._state.unresponsive:
            is_old = is_overtaken or (silence_of(channel) is not None and not channel.is_asking_again)
            if isinstance(response, UpdateMetadataResponse) and not is_old:
                for event in offline_in(broker, response):  # first: elections that wait for this answer take no other
                    self._on_event(event)
                self._on_event(BrokerAnswered(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch))
            else:  # it does not say which replicas are offline, or may be older than a report, or than the silence
                channel.asks_again = True
        for event in events_of(broker, request, response, is_overtaken=is_overtaken):
            self._on_event(event)

    def note_report(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None:
        """This registration has reported which of its replicas are offline."""
        if broker_id in self._channels and self._channels[broker_id][0].broker.broker_epoch == broker_epoch:
            self._channels[broker_id][0].reports_since_asked += 1

    async def watch_answers(self) -> None:
        """Count how long each broker owes an answer, in ticks, so that time in which this process stood still does not
        count. Probe brokers that have long been sent nothing."""
        probe_ticks = self._state.settings.answer_seconds_max / 2 / WATCH_SECONDS
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for channel, _ in list(self._channels.values()) if self._may_send() else ():
                channel.ticks += 1
                if channel.silent_ticks * WATCH_SECONDS >= SILENT_SECONDS:
                    self._on_silence(channel)
                elif not channel.waits_for_answer and channel.ticks >= probe_ticks:
                    channel.put(live_brokers(self._state), ())

    def ask_for_logs(self, effect: AskLogs) -> None:
        """The inquiry ends with the registration that it goes to."""
        assert self.group is not None
        broker_id, epoch = effect.broker.broker_id, effect.broker.broker_epoch
        address = self.address(effect.broker)
        if address is None or broker_id not in self._channels:
            return

        async def ask() -> None:
            asked, known = effect.partitions, dict[TopicPartition, ReplicaLog]()
            while asked:
                logs = await ask_logs(self._dialer, self._client_id, broker_id, address, epoch, asked)
                if changed := {each: logs[each] for each in asked if known.get(each) != logs[each]}:
                    self._on_event(LogsReceived(broker_id=broker_id, broker_epoch=epoch, logs=changed))
                known |= logs
                if asked := tuple(each for each in asked if logs[each].unavailable is not None):
                    await asyncio.sleep(UNAVAILABLE_SECONDS)
                    asked = tuple(each for each in asked if needs_logs(self._state, each))

        tasks = self._channels[broker_id][1]
        tasks[:] = [each for each in tasks if not each.done()]
        tasks.append(self.group.create_task(ask(), name=f"logs-of-{broker_id}"))

    def _liveness_events(self, broker: RegisteredBroker) -> LivenessEvents:
        """What happens to the liveness connection of this registration, as events in the queue."""
        broker_id, epoch = broker.broker_id, broker.broker_epoch
        now = asyncio.get_running_loop().time
        put = self._on_event

        def on_refused(attempt: int) -> None:
            put(BrokerRefused(broker_id=broker_id, broker_epoch=epoch, attempt=attempt))

        return LivenessEvents(
            on_held=lambda: put(LivenessConnectionHeld(broker_id=broker_id, broker_epoch=epoch)),
            on_lost=lambda: put(LivenessConnectionLost(broker_id=broker_id, broker_epoch=epoch, at_seconds=now())),
            on_refused=on_refused,
            on_silent=on_refused,
        )

    def confirm_failure(self, effect: ConfirmFailure) -> None:
        """One inquiry at a time about each broker."""
        under_way = self._inquiries.get(effect.broker.broker_id)
        if (under_way is not None and not under_way.done()) or not self._may_send():
            return
        assert self.group is not None
        task = self.group.create_task(self._ask_confirmers(effect), name=f"inquiry-{effect.broker.broker_id}")
        self._inquiries[effect.broker.broker_id] = task

    async def _ask_confirmers(self, effect: ConfirmFailure) -> None:
        loop = asyncio.get_running_loop()
        begun, broker_id, epoch = loop.time(), effect.broker.broker_id, effect.broker.broker_epoch
        addresses = {each.broker_id: self.address(each) for each in effect.confirmers}
        confirmers = [ConfirmerAddress(broker_id=each, address=at) for each, at in addresses.items() if at is not None]
        confirmer_id = await first_to_confirm(self._dialer, self._client_id, confirmers, broker_id, epoch)
        event: ControllerEvent = FailureUnconfirmed(broker_id=broker_id, broker_epoch=epoch, attempt=effect.attempt)
        if confirmer_id is not None:
            host, port = self.address(effect.broker) or ("?", 0)
            event = FailureConfirmed(
                broker_id=broker_id,
                broker_epoch=epoch,
                confirmer_id=confirmer_id,
                address=f"{host}:{port}",
                took_ms=round((loop.time() - begun) * 1000),
            )
        self._on_event(event)

    async def all_answered(self) -> None:
        """Return when every broker has answered what was queued for it up to now."""
        await asyncio.gather(*(channel.settled() for channel, _ in list(self._channels.values())))

    async def logs_of(self, broker: RegisteredBroker, partitions: Sequence[TopicPartition]) -> Logs:
        """The state of this broker's logs at this moment. Waits until the broker answers."""
        address = self.address(broker)
        assert address is not None, f"no address of {broker}"
        broker_id, epoch = broker.broker_id, broker.broker_epoch
        return {broker_id: await ask_logs(self._dialer, self._client_id, broker_id, address, epoch, partitions)}


def silence_of(channel: BrokerChannel) -> BrokerSilent | None:
    """The event, if the broker still owes an answer for too long."""
    of, seconds = channel.broker, channel.silent_ticks * WATCH_SECONDS
    if seconds < SILENT_SECONDS:
        return None
    may_lead = frozenset(channel.may_lead)
    return BrokerSilent(broker_id=of.broker_id, broker_epoch=of.broker_epoch, seconds=seconds, may_lead=may_lead)
