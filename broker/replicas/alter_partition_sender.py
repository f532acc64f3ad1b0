"""Sends the ISR proposals of this broker's leaders to the controller.

Owns: one AlterPartition request in flight, with a deadline; later proposals go with the next request. Leaves to others:
the meaning of a proposal, each of which ends as an AlterPartitionAnswered or AlterPartitionLost event of its partition.

Source: KIP-497; hardening rule 6 (half of replica.lag.time.max.ms, and a change of controller, end the wait).
"""

import asyncio
from collections.abc import Callable

import msgspec

from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication.events import AlterPartitionAnswered, AlterPartitionLost, ProposeIsr
from minibroker.protocol.errors import ErrorCode, error_code
from minibroker.protocol.events.replica_events import AlterPartitionFailed, IsrProposalRefused
from minibroker.protocol.ids import TopicPartition, to_wire
from minibroker.protocol.wire.messages import (
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopic,
    BrokerState,
)
from minibroker.runtime.broker_dialer import BrokerDialer
from minibroker.runtime.observer import UNOBSERVED, Observer
from minibroker.runtime.ports import NetworkError
from minibroker.runtime.request_channel import RequestChannel, RequestFailed, RequestRefused
from minibroker.runtime.rpc import RpcConnection

PROPOSALS_PER_REQUEST_MAX = 2_000
"""Keeps a request below the 1 MiB of a control frame."""
CONNECT_TIMEOUT_MS = 2_000
STILL_FAILING_MS = 1_000
"""Requests that failed longer ago are over: a proposal that is still wanted is sent again within a tenth of this."""
FAILURE_LOG_INTERVAL_MS = 10_000
"""A controller that does not answer, or refuses, is asked twenty times per second; one line per interval is enough."""


class Silence(msgspec.Struct, frozen=True):
    """Requests that got no answer, one after another. They belong to one registration: those of a former one have had
    their consequence, for it may have been removed because of them (seed 17290212)."""

    broker_epoch: int
    since_ms: int
    last_ms: int
    """When the last of them failed."""

    def lasts(self, broker_epoch: int | None, asked_ms: int) -> bool:
        """Whether a request sent at this time continues it. Long after the last one it does not: this broker led
        nothing meanwhile, or nothing that changed its ISR (seeds 17300988, 17406569)."""
        return broker_epoch == self.broker_epoch and asked_ms - self.last_ms <= STILL_FAILING_MS


class AlterPartitionSender:
    """Sends ISR proposals to the controller. `run` is a task of the owner."""

    def __init__(
        self,
        *,
        dialer: BrokerDialer,
        broker_id: int,
        broker_epoch: Callable[[], int | None],
        controller_address: Callable[[], tuple[int, str, int] | None],
        request_timeout_ms: int,
        now_ms: Callable[[], int],
        observer: Observer = UNOBSERVED,
    ) -> None:
        """`controller_address` returns the controller id, host and port that are known now."""
        self._dialer = dialer
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._controller_address = controller_address
        self._request_timeout_ms = request_timeout_ms
        self._now_ms = now_ms
        self._observer = observer
        self._waiting: dict[TopicPartition, tuple[Partition, ProposeIsr]] = {}
        self._wakeup = asyncio.Event()
        self._channel = RequestChannel(self._dial)
        self._last_dialled: tuple[int, str, int] | None = None
        """Whether it was reached or not."""
        self._failure_logged_ms: int | None = None
        self._silence: Silence | None = None
        self._asked_ms: int | None = None
        """When the request was sent that waits for its answer now."""

    def propose(self, partition: Partition, proposal: ProposeIsr) -> None:
        """Send it soon; a retry waits `after_ms` first."""
        if proposal.after_ms:
            loop = asyncio.get_running_loop()
            loop.call_later(proposal.after_ms / 1000, self._enqueue, partition, proposal)
        else:
            self._enqueue(partition, proposal)

    def unreachable_ms(self) -> int:
        """How long requests have been failing, 0 if none was sent lately. A leader that the controller can reach, but
        that cannot reach the controller, receives all updates and yet cannot change an ISR (hardening rule 17)."""
        silence, now_ms = self._silence, self._now_ms()
        asked_ms = now_ms if self._asked_ms is None else self._asked_ms
        if silence is None or not silence.lasts(self._broker_epoch(), asked_ms):
            return 0
        return now_ms - silence.since_ms

    def controller_changed(self) -> None:
        """Stop waiting for the old controller; its failures do not count against the new one."""
        if self._controller_address() != self._last_dialled:
            self._silence = None
            self._channel.hang_up()

    def _enqueue(self, partition: Partition, proposal: ProposeIsr) -> None:
        if partition.state.proposal_in_flight == proposal.proposal_id:
            self._waiting[partition.topic_partition] = (partition, proposal)
            self._wakeup.set()

    async def run(self) -> None:
        """Send what waits, one request at a time, forever."""
        with self._channel:
            while True:
                await self._wakeup.wait()
                self._wakeup.clear()
                while self._waiting:
                    keys = list(self._waiting)[:PROPOSALS_PER_REQUEST_MAX]
                    await self._send([self._waiting.pop(key) for key in keys])

    async def _send(self, proposals: list[tuple[Partition, ProposeIsr]]) -> None:
        broker_epoch = self._broker_epoch()
        if broker_epoch is None:  # a controller accepts no proposal of an unregistered broker
            self._lost(proposals)
            return
        controller = self._controller_address()
        if controller != self._last_dialled:
            self._channel.hang_up()
        request = _request(self._broker_id, broker_epoch, proposals)
        self._asked_ms = self._now_ms()
        try:
            response = await self._channel.ask(request, AlterPartitionResponse, self._request_timeout_ms)
        except RequestRefused as error:
            self._silence = None
            self._log_failure(f"was refused: {error}")
            self._lost(proposals)
            return
        except RequestFailed as error:
            if controller == self._controller_address():  # else there is another one, to which no request has failed
                self._note_silence(broker_epoch, self._asked_ms)
            self._log_failure(f"got no answer: {error}")
            self._lost(proposals)
            return
        finally:
            self._asked_ms = None
        self._silence = None
        self._failure_logged_ms = None
        self._settle(proposals, response)

    def _note_silence(self, broker_epoch: int, asked_ms: int) -> None:
        known, now_ms = self._silence, self._now_ms()
        since_ms = known.since_ms if known is not None and known.lasts(broker_epoch, asked_ms) else now_ms
        self._silence = Silence(broker_epoch, since_ms, last_ms=now_ms)

    def _log_failure(self, what: str) -> None:
        now_ms = self._now_ms()
        if self._failure_logged_ms is None or now_ms - self._failure_logged_ms >= FAILURE_LOG_INTERVAL_MS:
            self._failure_logged_ms = now_ms
            self._observer.notify(AlterPartitionFailed(problem=what))

    async def _dial(self) -> RpcConnection:
        address = self._last_dialled = self._controller_address()
        if address is None:
            raise NetworkError("no controller is known")
        return await self._dialer.connect(
            address[0], (address[1], address[2]), client_id=f"broker-{self._broker_id}", timeout_ms=CONNECT_TIMEOUT_MS
        )

    def _lost(self, proposals: list[tuple[Partition, ProposeIsr]]) -> None:
        for partition, proposal in proposals:
            partition.handle(AlterPartitionLost(proposal_id=proposal.proposal_id))

    def _settle(self, proposals: list[tuple[Partition, ProposeIsr]], response: AlterPartitionResponse) -> None:
        results = {
            TopicPartition(topic.topic_name, result.partition_index): result
            for topic in response.topics
            for result in topic.partitions
        }
        for partition, proposal in proposals:
            result = results.get(partition.topic_partition)
            if result is None:
                partition.handle(AlterPartitionLost(proposal_id=proposal.proposal_id))
                continue
            code = error_code(result.error_code)
            if code is not ErrorCode.NONE:
                partition.report(IsrProposalRefused, error=code.name)
            partition.handle(
                AlterPartitionAnswered(
                    proposal_id=proposal.proposal_id,
                    error_code=code,
                    leader_epoch=result.leader_epoch,
                    in_sync_replicas=tuple(result.isr),
                    partition_epoch=result.partition_epoch,
                    now_ms=self._now_ms(),
                )
            )


def _request(broker_id: int, broker_epoch: int, proposals: list[tuple[Partition, ProposeIsr]]) -> AlterPartitionRequest:
    topics: dict[tuple[str, str], list[AlterPartitionData]] = {}
    for partition, proposal in proposals:
        members = [
            BrokerState(broker_id=b, broker_epoch=broker_epoch if b == broker_id else to_wire(epoch))
            for b, epoch in proposal.new_isr_with_epochs
        ]
        data = AlterPartitionData(
            partition_index=partition.topic_partition.partition,
            leader_epoch=proposal.leader_epoch,
            new_isr_with_epochs=members,
            partition_epoch=proposal.partition_epoch,
        )
        topics.setdefault((partition.topic_partition.topic, partition.log.topic_id or ""), []).append(data)
    return AlterPartitionRequest(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        topics=[
            AlterPartitionTopic(topic_name=name, topic_id=topic_id, partitions=data)
            for (name, topic_id), data in topics.items()
        ],
    )
