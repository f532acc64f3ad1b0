"""Sends what the accumulator decides, and returns the answers to it. The producer's shell.

Owns: requests in flight (one channel per broker), timers, and when to look for new leaders. Leaves to others: order and
sequences (`accumulator`), the producer's identity (`identity_request`). There is no task per batch and no future per
record: everything here runs in callbacks of the loop, from an answer to the next request in one synchronous call.

Triggers: a batch is full; an answer came; a connection opened or was lost; metadata came; an identity was granted. And
one timer for all that time brings: the end of linger_ms, of a back-off, of a deadline, of the wait for an answer.
"""

import asyncio
import heapq
import math
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from minibroker.client.cluster import Cluster
from minibroker.client.errors import BrokerUnreachable, DeliveryTimedOut, MinibrokerError, broker_error, records
from minibroker.client.limits import LEADER_CHANGE_BACKOFF_MS, TIMER_SLACK_MS, Deadline
from minibroker.client.metadata_cache import Address
from minibroker.client.producer.accumulator import Accumulator
from minibroker.client.producer.batches import Batch, PartitionQueue
from minibroker.client.producer.delivery_watch import DeliveryWatch
from minibroker.client.producer.fence import Fence
from minibroker.client.producer.identity_request import IdentityRequest
from minibroker.client.producer.producer_metrics import ProducerMetrics
from minibroker.client.producer.producer_settings import ProducerSettings
from minibroker.client.retry import ProduceDecision, backoff_ms
from minibroker.protocol.ids import BrokerId, from_wire
from minibroker.protocol.wire.messages import (
    ApiVersionsRequest,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    Response,
)
from minibroker.runtime.deadline import DeadlineTimer
from minibroker.runtime.rpc import RpcConnection, RpcError

SLOW_ANSWER_MS = 1_000.0
"""After this long without an answer other brokers are asked for the leader: a paused leader does not report that it was
replaced, and would otherwise hold its batches for request_timeout_ms."""
BROKER_GIVES_UP_EARLIER_MS = 1_000
"""A broker that waits in vain for its in-sync replicas answers this long before we would close the connection."""


class _Sent(msgspec.Struct, eq=False):
    """One request that waits for its answer."""

    batches: list[Batch]
    topic_ids: dict[str, str]
    """By name, as the request names them: its answer is about these topics, whatever is known when it comes."""
    connection: RpcConnection
    sent_at_ms: float


class _BrokerChannel:
    """The requests in flight to one broker."""

    __slots__ = ("broker_id", "in_flight")

    def __init__(self, broker_id: BrokerId) -> None:
        self.broker_id = broker_id
        self.in_flight: dict[int, _Sent] = {}
        """In order of sending."""


class Sender:
    """Started and closed by the producer that owns it."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        settings: ProducerSettings,
        on_finished: Callable[[list[Batch]], None],
        on_packed: Callable[[Batch], None],
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._settings = settings
        timeout_ms = settings.request_timeout_ms
        self._broker_timeout_ms = timeout_ms - min(BROKER_GIVES_UP_EARLIER_MS, timeout_ms // 10)
        self._check_answer_after_ms = min(SLOW_ANSWER_MS, timeout_ms)
        """When to check a request for its answer, counted from its sending."""
        self._on_finished = on_finished
        self._on_packed = on_packed
        self.metrics = ProducerMetrics()
        self._loop = asyncio.get_running_loop()
        self._queues: list[PartitionQueue] = []
        self._channels: dict[BrokerId, _BrokerChannel] = {}
        self._timer = DeadlineTimer(self._tick)
        self._wakeups_ms: list[float] = []
        """A heap of the times at which some queue may have something to send without a further event."""
        self._last_wakeup_ms = 0.0
        self._expiry_at_ms = math.inf
        """No batch expires before this."""
        self._soon = False
        self._opened: dict[BrokerId, None] = {}
        """Leaders whose open batches are sent in the next loop iteration (without linger)."""
        self._opened_early: dict[PartitionQueue, None] = {}
        """Whose batches were opened while none had to linger: they have no wakeup for the end of linger_ms."""
        self._sent_count = 0
        self._seen_version = -1
        self._closed = False
        self._identity = IdentityRequest(cluster, accumulator, settings, self._on_identity)
        self.fence = Fence(accumulator, settings.producer_name)
        self._watch = DeliveryWatch(accumulator, cluster, self.obstacle)
        cluster.add_listener(self._on_metadata)
        cluster.connections.on_change = self._on_connection

    # ---------------------------------------------------------------------------------------------- for the producer
    def now_ms(self) -> float:
        return self._loop.time() * 1000

    def add_queue(self, queue: PartitionQueue) -> None:
        """Add a partition; its leader is taken from metadata, now and with each update."""
        if not self._closed:
            self._watch.start()
        self._queues.append(queue)
        self._learn_leaders([queue])

    def _learn_leaders(self, queues: Sequence[PartitionQueue]) -> None:
        changed = []
        for queue in queues:
            info, before = self._cluster.metadata.partition(queue.topic_partition), queue.leader_epoch
            self._accumulator.set_leader(queue, info.leader, info.leader_epoch)
            if before not in (None, info.leader_epoch):
                changed.append((queue.topic_partition, info.leader, info.leader_epoch))
        self._cluster.log.new_leaders(changed)

    def batch_opened(self, batch: Batch) -> None:
        """A batch was opened: it is sent after linger_ms at the latest."""
        self._expiry_at_ms = min(self._expiry_at_ms, batch.deadline_ms)
        leader = batch.queue.leader
        if self._accumulator.linger_ms <= 0 and leader is not None:
            self._send_at_once(leader)
        elif self._accumulator.linger_ms <= 0:
            self.wake()
        elif self._accumulator.skips_linger:
            self._opened_early[batch.queue] = None
            self.wake()
        else:
            self._wake_at(math.ceil(batch.created_ms + self._accumulator.linger_ms))

    def linger_again(self) -> None:
        """Open batches wait for linger_ms again."""
        early, self._opened_early = self._opened_early, {}
        for queue in early:
            if queue.open_batch is not None:
                self._wake_at(math.ceil(queue.open_batch.created_ms + self._accumulator.linger_ms))

    def batch_sealed(self, queue: PartitionQueue) -> None:
        """A batch is full: send it now, if its broker has room."""
        if queue.leader is not None:
            self._drain(queue.leader)
        else:
            self.wake()

    def _send_at_once(self, leader: BrokerId) -> None:
        """Without linger. A record with nothing in flight to its broker is sent within this call. Later records are
        sent together in the next loop iteration: a burst must not become as many requests."""
        if not self._opened and self._settings.acks_number != 0 and not self._is_busy(leader):
            self._drain(leader)
            if self._is_busy(leader):
                self._arm(self._expiry_at_ms)
                return
        if not self._opened:
            self._loop.call_soon(self._send_opened)
        self._opened[leader] = None

    def _is_busy(self, leader: BrokerId) -> bool:
        """Whether anything is in flight to it."""
        channel = self._channels.get(leader)
        return channel is not None and bool(channel.in_flight)

    def _send_opened(self) -> None:
        """Send the batches opened in the previous loop iteration. Schedule a whole tick only if none could be sent."""
        opened, self._opened = self._opened, {}
        for leader in opened:
            self._drain(leader)
            if not self._is_busy(leader):
                self.wake()
        self._arm(self._expiry_at_ms)

    @property
    def requests_in_flight(self) -> int:
        return sum(len(channel.in_flight) for channel in self._channels.values())

    def wake(self) -> None:
        """Look at everything, soon."""
        if not self._soon and not self._closed:
            self._soon = True
            self._loop.call_soon(self._tick)

    def want_identity(self) -> None:
        """Idempotence needs a producer id: ask for it before the first record comes."""
        self._accumulator.identity_wanted = True
        self._identity.begin()

    async def first_identity(self, deadline: Deadline) -> None:
        """For a producer with a name: have the name before anything is sent. Raises MinibrokerError."""
        await self._identity.first(deadline)

    def _on_identity(self) -> None:
        if self._identity.refusal is not None and self._accumulator.identity is not None:
            self._end(self._identity.refusal)
        self._tick()

    def _end(self, reason: MinibrokerError) -> None:
        """A later process has this producer's name: nothing can be written any more."""
        if self.fence.end(reason):
            self._cluster.log.warning("ended: %s", reason)
            self._report_finished()

    async def barrier(self, deadline: Deadline) -> None:
        """With acks=0 there are no answers: make sure that brokers have received what was written to their connections.

        A broker reads a later request on the same connection after them, so any answer to it proves that.
        """
        for broker_id in tuple(self._channels):
            connection = self._cluster.open_connection(broker_id)
            if connection is not None:
                try:
                    await connection.request(ApiVersionsRequest(), deadline.at_most(self._settings.request_timeout_ms))
                except RpcError:
                    continue  # acks=0 promises nothing

    async def close(self) -> None:
        """Stop. The producer ends batches without outcome."""
        self._closed = True
        self._watch.close()
        self._timer.cancel()
        await self._identity.close()

    # ------------------------------------------------------------------------------------------------------- sending
    def _drain(self, leader: BrokerId) -> None:
        """Send what one broker may get now."""
        accumulator = self._accumulator
        channel = self._channels.get(leader)
        if channel is None:
            channel = self._channels[leader] = _BrokerChannel(leader)
        now_ms = self.now_ms() + TIMER_SLACK_MS
        while (
            len(channel.in_flight) < self._settings.max_in_flight_requests_per_connection
            and accumulator.has_work(leader)
            and not self._closed
        ):
            connection = self._cluster.open_connection(leader)
            if connection is None:
                break  # _on_connection continues
            batches = accumulator.drain(leader, now_ms, self._settings.max_request_size)
            if not batches or not self._send(channel, connection, batches):
                break
        if accumulator.identity_wanted:
            self._identity.begin()

    def _send(self, channel: _BrokerChannel, connection: RpcConnection, batches: list[Batch]) -> bool:
        topics: dict[str, list[ProducePartition]] = {}
        for batch in batches:
            assert batch.packed is not None
            self._on_packed(batch)
            topic, index = batch.queue.topic_partition
            topics.setdefault(topic, []).append(
                ProducePartition(index=index, retry=batch.maybe_written, records=batch.packed)
            )
        topic_ids = {name: self._cluster.metadata.topic_id(name) or "" for name in topics}
        request = ProduceRequest(
            acks=self._settings.acks_number,
            timeout_ms=self._broker_timeout_ms,
            topic_data=[
                ProduceTopic(name=name, topic_id=topic_ids[name], partition_data=parts)
                for name, parts in topics.items()
            ],
        )
        try:
            if self._settings.acks_number == 0:
                connection.send_without_reply(request)
                self._finish_unanswered(batches)
                return True
            self._sent_count = number = self._sent_count + 1
            now_ms = self.now_ms()
            channel.in_flight[number] = _Sent(batches, topic_ids, connection, now_ms)
            connection.send(request, partial(self._on_reply, channel, number))
            self._arm(now_ms + self._check_answer_after_ms)
        except RpcError as error:
            channel.in_flight.pop(self._sent_count, None)
            for batch in batches:
                self._accumulator.unsend(batch)
                batch.last_error = BrokerUnreachable(f"broker {channel.broker_id}: {error}", channel.broker_id)
            return False  # a loss is reported within this step of the loop; if too many calls wait, an answer continues
        return True

    def _finish_unanswered(self, batches: list[Batch]) -> None:
        for batch in batches:
            self._accumulator.written(batch, None, None)
        self._report_finished()

    # ------------------------------------------------------------------------------------------------------- answers
    def _on_reply(self, channel: _BrokerChannel, number: int, reply: Response | RpcError) -> None:
        sent = channel.in_flight.pop(number)
        if isinstance(reply, ProduceResponse) and not reply.error_code:
            answers: dict[tuple[str, int], list[ProducePartitionResponse]] = {}
            for topic in reply.responses:
                for one in reversed(topic.partition_responses):  # the batches of a partition are answered in order
                    answers.setdefault((topic.name, one.index), []).append(one)
            for batch in sent.batches:
                left = answers.get(batch.queue.topic_partition)
                answer = left.pop() if left else None
                if answer is None:
                    self._on_lost(
                        channel, batch, f"broker {channel.broker_id} did not answer for {batch.topic_partition}"
                    )
                elif answer.error_code == 0:
                    place = from_wire(answer.base_offset), from_wire(answer.leader_epoch)
                    self._accumulator.written(batch, *place, channel.broker_id)
                    if batch.queue.leader != channel.broker_id:
                        self._arm_for(batch.queue)  # what waited for this answer goes to another broker
                else:
                    self._on_error(channel, sent, batch, answer)
        elif isinstance(reply, Response):
            for batch in sent.batches:
                index = batch.queue.topic_partition.partition
                answer = ProducePartitionResponse(
                    index=index, error_code=reply.error_code, error_message=reply.error_message
                )
                self._on_error(channel, sent, batch, answer)
        else:
            for batch in sent.batches:
                self._on_lost(channel, batch, f"broker {channel.broker_id}: {reply}")
        if self._accumulator.finished:
            self._report_finished()
        self._drain(channel.broker_id)

    def _on_error(self, channel: _BrokerChannel, sent: _Sent, batch: Batch, answer: ProducePartitionResponse) -> None:
        partition = batch.queue.topic_partition
        error = broker_error(answer.error_code, self._cluster.where(partition, channel.broker_id), answer.error_message)
        decision = self._accumulator.refused(batch, error, self._retry_at_ms(batch, error.refreshes_metadata))
        self.metrics.attempts_refused += 1
        self._cluster.log.debug("attempt %d for %s: %s (%s)", batch.attempts, partition, error, decision.name)
        if decision is ProduceDecision.FENCED and self._settings.producer_name is not None:
            self._end(error)
        elif decision is ProduceDecision.FENCED:
            self._identity.is_fenced = True
        if error.refreshes_metadata:
            if self._cluster.metadata.apply_hint(partition, answer.current_leader, sent.topic_ids[partition.topic]):
                self._learn_leaders([batch.queue])
            self._cluster.request_refresh()
        self._arm_for(batch.queue)

    def _on_lost(self, channel: _BrokerChannel, batch: Batch, reason: str) -> None:
        error = BrokerUnreachable(f"{reason} [{self._cluster.where(batch.queue.topic_partition)}]", channel.broker_id)
        self._accumulator.lost(batch, error, self._retry_at_ms(batch))
        self.metrics.attempts_lost += 1
        self._cluster.log.debug("attempt %d for %s was lost: %s", batch.attempts, batch.topic_partition, error)
        self._cluster.request_refresh()
        self._arm_for(batch.queue)

    def _retry_at_ms(self, batch: Batch, leader_changed: bool = False) -> float:
        settings = self._settings
        unit_random = self._cluster.runtime.random.random()
        base_ms = float(settings.retry_backoff_ms)
        if leader_changed:
            base_ms = min(base_ms, LEADER_CHANGE_BACKOFF_MS)
        return self.now_ms() + backoff_ms(batch.queue.failures + 1, base_ms, settings.retry_backoff_max_ms, unit_random)

    def _report_finished(self) -> None:
        finished, self._accumulator.finished = self._accumulator.finished, []
        if finished:
            self._on_finished(finished)

    # ---------------------------------------------------------------------------------------------------- the timer
    def _arm(self, at_ms: float) -> None:
        """Tick at this time, or earlier."""
        if not self._closed:
            self._timer.set(at_ms / 1000)

    def _arm_for(self, queue: PartitionQueue) -> None:
        now_ms = self.now_ms()
        ready_at_ms = self._accumulator.ready_at_ms(queue, now_ms)
        if ready_at_ms is None:
            return
        if ready_at_ms > now_ms:
            self._wake_at(ready_at_ms)
        else:
            self.wake()

    def _wake_at(self, at_ms: float) -> None:
        """Tick also at this time: earlier ticks must not drop it. Batches opened within the same millisecond share one
        tick."""
        if at_ms != self._last_wakeup_ms:
            self._last_wakeup_ms = at_ms
            heapq.heappush(self._wakeups_ms, at_ms)
            self._arm(at_ms)

    def _tick(self) -> None:
        """Check everything: what expired, what may be sent, which broker is slow to answer; then set the timer."""
        self._soon = False
        if self._closed:
            return
        now_ms = self.now_ms()
        self._expire(now_ms + TIMER_SLACK_MS)
        self._check_channels(now_ms + TIMER_SLACK_MS)
        for leader in self._accumulator.leaders():
            if leader is None:
                self._cluster.request_refresh()
            else:
                self._drain(leader)
        next_ms = [
            channel_ms for channel in self._channels.values() for channel_ms in self._channel_times(channel, now_ms)
        ]
        while self._wakeups_ms and self._wakeups_ms[0] <= now_ms + TIMER_SLACK_MS:
            heapq.heappop(self._wakeups_ms)
            self._last_wakeup_ms = 0.0
        next_ms.extend(self._wakeups_ms[:1])
        if self._expiry_at_ms < math.inf:
            next_ms.append(self._expiry_at_ms)
        if next_ms:
            self._arm(max(min(next_ms), now_ms + 1))

    def _channel_times(self, channel: _BrokerChannel, now_ms: float) -> list[float]:
        if not channel.in_flight:
            return []
        oldest = next(iter(channel.in_flight.values()))
        return [min(now_ms + SLOW_ANSWER_MS, oldest.sent_at_ms + self._settings.request_timeout_ms)]

    def _expire(self, now_ms: float) -> None:
        """Checks all batches, but only when one may have expired: later ones have later deadlines."""
        if now_ms < self._expiry_at_ms:
            return
        self._expiry_at_ms = math.inf
        for queue in self._accumulator.active_queues():
            while (batch := queue.oldest()) is not None and batch.deadline_ms <= now_ms:
                if batch.packed is None:
                    batch.record_count = batch.builder.record_count
                self._accumulator.expire(batch, self._expiry_error(batch))
            if batch is not None:
                self._expiry_at_ms = min(self._expiry_at_ms, batch.deadline_ms)
        self._report_finished()

    def obstacle(self, batch: Batch) -> MinibrokerError | None:
        """Why the batch has no outcome yet. None: it still collects records, or its answer is pending without a known
        error."""
        cluster, leader, last = self._cluster, batch.queue.leader, batch.last_error
        needs_identity = last is None and self._accumulator.idempotent and self._accumulator.identity is None
        is_lost = needs_identity or (last is not None and last.refreshes_metadata)
        if leader is None or not cluster.is_connected(leader) or (is_lost and cluster.metadata.is_from_fenced):
            return cluster.leader_problem(batch.topic_partition)
        if needs_identity:
            return self._identity.error or MinibrokerError("no broker has granted the producer its id yet")
        return last

    def _expiry_error(self, batch: Batch) -> DeliveryTimedOut:
        partition = batch.topic_partition
        last = self.obstacle(batch) or self._cluster.leader_problem(partition)
        return DeliveryTimedOut(
            f"{records(batch.record_count)} for {partition} timed out after "
            f"{self._settings.delivery_timeout_ms / 1000:g} s and {batch.attempts} attempts ({batch.fate()})",
            last,
            maybe_written=batch.maybe_written or batch.in_flight,
        )

    def _check_channels(self, now_ms: float) -> None:
        """Close connections that answer too slowly. A leader that was replaced meanwhile is not waited for."""
        for channel in self._channels.values():
            if not channel.in_flight:
                continue
            oldest = next(iter(channel.in_flight.values()))
            age_ms = now_ms - oldest.sent_at_ms
            if age_ms < SLOW_ANSWER_MS:
                continue
            deposed = any(batch.queue.leader not in (channel.broker_id, None) for batch in oldest.batches)
            if deposed or age_ms >= self._settings.request_timeout_ms:
                oldest.connection.abort()  # all its requests end as lost, and are retried elsewhere
            else:
                self._cluster.request_refresh()

    # ------------------------------------------------------------------------------------------ updates from outside
    def _on_metadata(self) -> None:
        metadata = self._cluster.metadata
        if metadata.version != self._seen_version:
            self._seen_version = metadata.version
            self._learn_leaders(self._queues)
        if self._accumulator.active_queues():
            self.wake()

    def _on_connection(self, address: Address) -> None:
        """A connection opened, was lost, or could not be made."""
        if self._closed:
            return
        for leader in self._accumulator.leaders():
            if leader is not None and self._cluster.metadata.brokers.get(leader) == address:
                if self._cluster.connections.last_error(address) is not None:
                    self._cluster.request_refresh()
                self._drain(leader)
