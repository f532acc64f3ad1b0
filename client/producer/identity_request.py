"""Asks the cluster for the producer's identity: a producer id with an epoch, or the next epoch of the present id.

Owns: the one request in progress, its retries, and its last error. Leaves to others: when an identity is needed, what
it means for batches (`accumulator`), and who gets the next epoch of a name (`broker/requests/producer_name_rules.py`).
"""

import asyncio
from collections.abc import Callable

from minibroker.client.cluster import Cluster
from minibroker.client.errors import CallTimedOut, ClientClosed, MinibrokerError, ProducerFenced, broker_error
from minibroker.client.limits import Deadline
from minibroker.client.producer.accumulator import Accumulator
from minibroker.client.producer.batches import ProducerIdentity
from minibroker.client.producer.producer_settings import ProducerSettings
from minibroker.client.retry import backoff_ms
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from minibroker.protocol.wire.messages import InitProducerIdRequest, InitProducerIdResponse


class IdentityRequest:
    """Puts the identity into the accumulator, and calls `on_ended` then, or when it is refused for good."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        settings: ProducerSettings,
        on_ended: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._settings = settings
        self._on_ended = on_ended
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.error: MinibrokerError | None = None
        """Why the last broker that was asked did not grant it; None after a grant."""
        self.refusal: MinibrokerError | None = None
        """Of a producer with a name: another process has it, or the first request was refused."""
        self.is_fenced = False
        """Another producer has taken the present id over: ask for a new one, not for its next epoch. Never if named."""
        is_named = settings.producer_name is not None
        self._process_token = f"{cluster.runtime.random.getrandbits(128):032x}" if is_named else ""
        """With it a broker recognises a repeated request, which must not count as a later process's."""
        self._newest = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        """The newest identity of the name, as far as a broker has told: the start replaces it."""

    async def first(self, deadline: Deadline) -> None:
        """Wait for the first identity. Raises what a broker refused it for, or CallTimedOut."""
        self.begin()
        task = self._task
        assert task is not None
        done, _ = await asyncio.wait([task], timeout=deadline.remaining_ms() / 1000)
        if not done:
            raise CallTimedOut(f"no producer id was granted within {round(deadline.timeout_ms)} ms", self.error)
        if task.cancelled():
            raise ClientClosed("the client was closed")
        task.result()  # raises a bug
        if self.refusal is not None:
            raise self.refusal

    def begin(self) -> None:
        """Ask, unless a request is in progress."""
        if self._task is None and not self._closed and self.refusal is None:
            self._task = asyncio.get_running_loop().create_task(self._ask())
            self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if not task.cancelled():
            task.result()  # a bug must be seen
            self._on_ended()

    async def _ask(self) -> None:
        """Retries until granted, closed, or refused for good."""
        accumulator, settings = self._accumulator, self._settings
        failures = 0
        while True:
            present = None if self.is_fenced else accumulator.identity
            try:
                deadline = Deadline(settings.request_timeout_ms)
                reply = await self._cluster.ask_any(
                    self._request(present), InitProducerIdResponse, deadline, self._note
                )
                if self._has_told_newest(reply):  # ask at once: each time another process has started, so this ends
                    continue
            except MinibrokerError as error:
                self.error = error
                if settings.producer_name is not None and self._is_final(error):
                    self.refusal = error
                    return
                failures += 1
                self._cluster.log.debug("a producer id is asked for again: %s", error)
                if settings.producer_name is None:  # with a name it would be a start, and fence a later process
                    self.is_fenced = self.is_fenced or (present is not None and not error.retriable)
                unit_random = self._cluster.runtime.random.random()
                pause_ms = backoff_ms(failures, settings.retry_backoff_ms, settings.retry_backoff_max_ms, unit_random)
                await asyncio.sleep(pause_ms / 1000)
                continue
            generation = accumulator.identity.generation + 1 if accumulator.identity else 0
            accumulator.identity = ProducerIdentity(reply.producer_id, reply.producer_epoch, generation)
            accumulator.identity_wanted = False
            self._cluster.log.info("writes as producer %d, epoch %d", reply.producer_id, reply.producer_epoch)
            self.error = None
            self.is_fenced = False
            return

    def _request(self, present: ProducerIdentity | None) -> InitProducerIdRequest:
        newest_id, newest_epoch = self._newest
        return InitProducerIdRequest(
            transactional_id=self._settings.producer_name,
            producer_id=present.producer_id if present else NO_PRODUCER_ID,
            producer_epoch=present.producer_epoch if present else NO_PRODUCER_EPOCH,
            process_token=self._process_token,
            newest_id=newest_id,
            newest_epoch=newest_epoch,
        )

    def _has_told_newest(self, reply: InitProducerIdResponse) -> bool:
        """Whether it names another identity for the start to replace. Raises BrokerError if it grants none either."""
        newest = reply.newest_id, reply.newest_epoch
        if reply.producer_id < 0 and self._settings.producer_name is not None and newest != self._newest:
            self._newest = newest
            return True
        if reply.producer_id < 0 or reply.producer_epoch < 0:
            raise broker_error(
                ErrorCode.UNKNOWN_SERVER_ERROR, message="a broker granted no producer id, and told no reason"
            )
        return False

    def _note(self, error: MinibrokerError) -> None:
        self.error = error

    def _is_final(self, error: MinibrokerError) -> bool:
        is_first = self._accumulator.identity is None
        return isinstance(error, ProducerFenced) or (is_first and not error.retriable)
