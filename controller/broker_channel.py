"""The controller's channel to one broker: one request at a time, in order, resent until it is answered.

Owns: the resending to one registration of one broker. Leaves to others: what the requests mean, the order and merging
of those that wait (`send_queue`), and the connection (`runtime/request_channel`).

Theory (replication rules, section 9). A lost reply looks like a lost request, so the channel sends the request again;
brokers accept it twice without harm. Nothing overtakes it. But an attempt that was given up may still arrive behind
later requests, so each request has a number, and a broker refuses one that comes behind a later one. The channel ends
only with the registration it was opened for: a broker that registers again gets a new channel, with the new broker
epoch in every request, and all orders again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from minibroker.controller.core.control_requests import (
    ControllerIdentity,
    ControlRequest,
    LeaderAndIsr,
    PartitionOrder,
    UpdateMetadata,
    changes_a_log,
    to_requests,
)
from minibroker.controller.core.controller_state import RegisteredBroker
from minibroker.controller.send_queue import OrderBatch, SendQueue
from minibroker.protocol.ids import BrokerId, TopicPartition
from minibroker.protocol.wire.messages import LiveBroker, Request, Response
from minibroker.runtime.broker_dialer import BrokerDialer
from minibroker.runtime.request_channel import RequestChannel, RequestFailed

RESEND_SECONDS = 0.1
"""Kafka's pause between attempts."""
CONNECT_TIMEOUT_MS = 3_000
"""A host that does not answer must not block the channel long after it is back."""
AUTHENTICATION_TIMEOUT_MS = 2_000
"""A broker that lost the connection unnoticed gets its order with the next attempt, before it has been silent for too
long (`answer_seconds_max`): else one lost answer would unregister it (seed 18100037)."""
RETRY_LOG_INTERVAL_SECONDS = 10.0
"""One log line per outage, and another at this interval while it lasts."""

logger = logging.getLogger("minibroker.controller")

OnAnswer = Callable[["BrokerChannel", Request, Response], None]


class BrokerChannel:
    """One per registration. `run` is a task of the owner; it ends by cancellation."""

    def __init__(
        self,
        dialer: BrokerDialer,
        sender: ControllerIdentity,
        broker: RegisteredBroker,
        address: tuple[str, int],
        *,
        numbers: Iterator[int],
        may_send: Callable[[], bool],
        on_answer: OnAnswer,
        request_timeout_ms: int,
    ) -> None:
        """`numbers` of requests rise over all channels of a controller epoch: a registration may get a second one."""
        self.broker = broker
        self._numbers = numbers
        self._sender = sender
        self._may_send = may_send
        self._on_answer = on_answer
        self._request_timeout_ms = request_timeout_ms
        self._queue = SendQueue()
        self.may_lead: set[TopicPartition] = set()
        """Partitions that the broker was ordered to lead, and has not answered a later order about: if it falls silent,
        it may go on."""
        self._filled = asyncio.Event()
        client_id = f"controller-{sender.controller_id}"
        dial = partial(
            dialer.connect,
            broker.broker_id,
            address,
            client_id=client_id,
            timeout_ms=CONNECT_TIMEOUT_MS,
            authentication_timeout_ms=AUTHENTICATION_TIMEOUT_MS,
        )
        self._channel = RequestChannel(dial)
        self._logged_at: float | None = None
        self.waits_for_answer = False
        """An order was sent, or is about to be, and is not answered yet."""
        self.ticks = 0
        """Checks by the owner since `waits_for_answer` last changed; the owner counts them."""
        self.reports_since_asked = 0
        """Reports of the broker that came since the last request went out: its answer may be older. The owner counts
        them."""
        self.asks_again = False
        """Set by the owner: send an empty UpdateMetadata, whose answer says how the broker is, ahead of all orders, of
        which some take seconds."""
        self.is_asking_again = False
        """That request is under way."""
        self._put_count = 0
        self._settled_count = 0
        self._settled = asyncio.Condition()

    @property
    def silent_ticks(self) -> int:
        """Whole pauses between checks in which an order has not been answered. The first check may come right after
        the order."""
        return self.ticks - 1 if self.waits_for_answer else 0

    def put(self, live_brokers: tuple[LiveBroker, ...], orders: Sequence[PartitionOrder]) -> None:
        """Queue orders of one kind."""
        self._queue.put(live_brokers, orders)
        self.may_lead |= _led(orders, self.broker.broker_id)
        self._put_count += 1
        self._filled.set()

    async def settled(self) -> None:
        """Return when the broker has answered everything that was queued before this call."""
        wanted = self._put_count
        async with self._settled:
            await self._settled.wait_for(lambda: self._settled_count >= wanted)

    async def run(self) -> None:
        """Send until cancelled."""
        with self._channel:
            while True:
                await self._filled.wait()
                count = self._put_count
                batch = self._queue.take()
                if batch is None:
                    self._filled.clear()
                    async with self._settled:
                        self._settled_count = count
                        self._settled.notify_all()
                    continue
                await self._send(batch)

    async def _send(self, batch: OrderBatch) -> None:
        """Before logs are created or deleted, elections that came meanwhile go first: a broker whose disk is busy takes
        ten milliseconds for each log, and a partition without its leader's order takes no records."""
        orders, sent = list(batch.orders.values()), 0
        for request in to_requests(self._sender, self.broker.broker_epoch, batch.live_brokers, orders):
            if sent and changes_a_log(orders[sent]) and self._queue.holds_election():  # `sent`: something is, each time
                self._queue.put_back(batch, orders[sent:])
                return
            part = orders[sent : sent + sum(len(topic.partition_states) for topic in request.topic_states)]
            led = _led(part, self.broker.broker_id)
            self.may_lead |= led  # again: another order may have been answered since these were queued
            await self._deliver(request)
            self.may_lead -= {each.partition for each in part if not isinstance(each, UpdateMetadata)} - led
            while self.asks_again:
                self.is_asking_again, self.asks_again = True, False
                await self._deliver(*to_requests(self._sender, self.broker.broker_epoch, (), ()))
            self.is_asking_again = False
            sent += len(part)

    async def _deliver(self, request: ControlRequest) -> None:
        request = replace(request, order_number=next(self._numbers))
        self.waits_for_answer, self.ticks = True, 0
        while True:
            if self._may_send():
                problem = await self._attempt(request)
                if problem is None:
                    self._logged_at = None
                    self.waits_for_answer, self.ticks = False, 0
                    return
                self._log_retry(type(request).__name__, problem)
            await asyncio.sleep(RESEND_SECONDS)

    async def _attempt(self, request: Request) -> str | None:
        """Why the request must be sent again; None when it was answered."""
        self.reports_since_asked = 0
        try:
            response = await self._channel.ask(request, Response, self._request_timeout_ms)
        except RequestFailed as error:
            return str(error)
        self._on_answer(self, request, response)
        return None

    def _log_retry(self, what: str, problem: str) -> None:
        now = asyncio.get_running_loop().time()
        if self._logged_at is None or now - self._logged_at >= RETRY_LOG_INTERVAL_SECONDS:
            self._logged_at = now
            logger.warning("%s to broker %d is sent again: %s", what, self.broker.broker_id, problem)


def _led(orders: Sequence[PartitionOrder], broker_id: BrokerId) -> set[TopicPartition]:
    """Partitions that the broker leads by these orders."""
    return {each.partition for each in orders if isinstance(each, LeaderAndIsr) and each.content.leader == broker_id}
