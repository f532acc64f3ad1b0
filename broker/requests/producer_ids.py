"""Producer ids that no two producers of the cluster share (hardening rule 12, KIP-98, KIP-730).

Owns: this broker's block of ids and how it gets the next one from ZooKeeper. Leaves to others: the names of producers
(`producer_names`), and what producers do with their id; brokers learn about producers from batches only.

Theory: /latest_producer_id_block names the block handed out last. The broker that sets it to the next block, with the
version it read, owns that block. An id may be lost (a write of unknown outcome is not examined, the next block is
taken); it is never given twice.
"""

import asyncio
import logging

from minibroker.broker.requests.producer_name_rules import Claim, NotNewest
from minibroker.broker.requests.producer_names import NameRefused, ProducerNames, claim_of
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import PRODUCER_EPOCH_MAX, BrokerId, ProducerId
from minibroker.protocol.wire.messages import InitProducerIdRequest, InitProducerIdResponse
from minibroker.protocol.znodes import PRODUCER_ID_BLOCK, CorruptZnode, ProducerIdBlock
from minibroker.runtime.ports import (
    BadVersion,
    Clock,
    Coordination,
    CoordinationError,
    CoordinationUnavailable,
    NodeExists,
    NoNode,
    WriteOutcomeUnknown,
)

BLOCK_SIZE = 1000
"""Kafka's: one write to ZooKeeper for a thousand producers."""
PRODUCER_ID_MAX = 2**63 - 1
ATTEMPTS_MAX = 20
"""Each of the brokers that take a block at the same moment makes another one fail at most once."""
ANSWER_SECONDS_MAX = 30.0
"""A client's default timeout. Each attempt may wait for ZooKeeper as long as a session lasts."""

log = logging.getLogger("minibroker.producer_ids")


def waited_text(broker_id: BrokerId) -> str:
    """What a request is told that waited for ANSWER_SECONDS_MAX."""
    return f"broker {broker_id} waited {ANSWER_SECONDS_MAX:g} s for ZooKeeper"


class ProducerIdsUnavailable(Exception):
    """No new block of ids is available now."""


class ProducerIds:
    """Hands out producer ids."""

    def __init__(self, coordination: Coordination, broker_id: BrokerId, clock: Clock) -> None:
        self._coordination = coordination
        self._broker_id = broker_id
        self._names = ProducerNames(coordination, clock, self.next_producer_id)
        self._next: ProducerId = 0
        self._end: ProducerId = 0
        """Exclusive end of the block."""
        self._refill = asyncio.Lock()
        """One block at a time, however many producers start."""
        self._blocks_taken = 0

    @property
    def changes(self) -> int:
        """Blocks and epochs of names that this broker has taken in ZooKeeper."""
        return self._blocks_taken + self._names.epochs_given

    async def next_producer_id(self) -> ProducerId:
        """A fresh id. Raises ProducerIdsUnavailable."""
        while self._next == self._end:
            async with self._refill:
                if self._next == self._end:
                    self._next, self._end = await self._take_block()
        self._next += 1
        return self._next - 1

    async def answer(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """A new id, or for a request with a producer id its next epoch (KIP-360). For a name (`transactional_id`) its
        next epoch in both cases. What an attempt without an answer has taken is lost, as if its answer had been."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await self._answer(request)
        except TimeoutError:
            return _refused(ErrorCode.REQUEST_TIMED_OUT, waited_text(self._broker_id))

    async def _answer(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            return _refused(ErrorCode.INVALID_REQUEST, "give producer_id and producer_epoch together, or neither")
        if request.transactional_id is not None:
            return await self._answer_name(request.transactional_id, claim_of(request))
        if request.producer_id >= 0 and request.producer_epoch < PRODUCER_EPOCH_MAX:
            return InitProducerIdResponse(producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1)
        try:
            return InitProducerIdResponse(producer_id=await self.next_producer_id(), producer_epoch=0)
        except ProducerIdsUnavailable as error:
            return _refused(ErrorCode.REQUEST_TIMED_OUT, f"broker {self._broker_id} has no producer id left: {error}")

    async def _answer_name(self, name: str, claim: Claim) -> InitProducerIdResponse:
        try:
            answer = await self._names.answer(name, claim)
        except NameRefused as refusal:
            return _refused(refusal.code, str(refusal))
        except (CoordinationError, ProducerIdsUnavailable) as error:
            return _refused(ErrorCode.REQUEST_TIMED_OUT, f"broker {self._broker_id} cannot look {name!r} up: {error}")
        if isinstance(answer, NotNewest):
            newest_id, newest_epoch = answer.newest
            return InitProducerIdResponse(newest_id=newest_id, newest_epoch=newest_epoch)
        producer_id, epoch = answer
        log.debug("producer %r is producer %d now, epoch %d", name, producer_id, epoch)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)

    async def _take_block(self) -> tuple[ProducerId, ProducerId]:
        """First id and exclusive end of a block that is ours alone."""
        for _ in range(ATTEMPTS_MAX):
            try:
                block = await self._try_take_block()
                self._blocks_taken += 1
                return block
            except (NodeExists, NoNode, BadVersion, WriteOutcomeUnknown) as error:
                log.info("producer id block: %s, trying again", error)
            except CoordinationUnavailable as error:
                raise ProducerIdsUnavailable(f"ZooKeeper cannot be reached ({error})") from error
            except (CoordinationError, CorruptZnode) as error:
                raise ProducerIdsUnavailable(str(error)) from error
        raise ProducerIdsUnavailable(f"no block of ids could be taken in {ATTEMPTS_MAX} attempts")

    async def _try_take_block(self) -> tuple[ProducerId, ProducerId]:
        try:
            content, stat = await self._coordination.get(PRODUCER_ID_BLOCK)
        except NoNode:
            await self._coordination.create(PRODUCER_ID_BLOCK, self._block(0).encode())
            return 0, BLOCK_SIZE
        start = int(ProducerIdBlock.decode(content).block_end) + 1
        if start > PRODUCER_ID_MAX - BLOCK_SIZE:
            raise CorruptZnode(f"{PRODUCER_ID_BLOCK}: no ids are left after {start - 1}")
        await self._coordination.set(PRODUCER_ID_BLOCK, self._block(start).encode(), stat.version)
        return start, start + BLOCK_SIZE

    def _block(self, start: ProducerId) -> ProducerIdBlock:
        return ProducerIdBlock(broker=self._broker_id, block_start=str(start), block_end=str(start + BLOCK_SIZE - 1))


def _refused(code: ErrorCode, message: str) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, error_message=message)
