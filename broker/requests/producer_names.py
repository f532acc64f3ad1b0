"""The names of producers: each start under a name fences the process that had it before (KIP-98, KIP-360).

Owns: `/producer_names/<name>`, which holds the producer id of a name and its newest epoch, and how long it is kept.
Leaves to others: fresh producer ids (`producer_ids`), and refusing batches of older epochs, which each log does by what
it holds (`broker/replication/producer_state.py`).

Theory: any broker may answer, because each change is a write under the version that was read. So of two processes that
start together one gets the higher epoch, and no epoch is given twice, through changes of the controller, too. Who gets
the next epoch: `producer_name_rules`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from minibroker.broker.requests.producer_name_rules import Claim, Fenced, GrantedBefore, Identity, NotNewest, decide
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import PRODUCER_EPOCH_MAX, PRODUCER_NAME_MAX_LENGTH, ProducerId, is_producer_name
from minibroker.protocol.wire.messages import InitProducerIdRequest
from minibroker.protocol.znodes import (
    NO_PRODUCER,
    PRODUCER_NAMES,
    CorruptZnode,
    ProducerNameNode,
    producer_name_path,
)
from minibroker.runtime.ports import BadVersion, Clock, Coordination, NodeExists, NoNode, WriteOutcomeUnknown

NAMES_MAX = 1_000
"""ZooKeeper lists them in one answer, of which it sends at most 1 MB. Brokers that add names at the same moment may
exceed it by one each."""
KEPT_MS = 7 * 86_400_000
"""Kafka's transactional.id.expiration.ms. A name whose last epoch is older may be forgotten to make room."""
LOOK_AGAIN_AFTER_S = 60.0
"""A thousand names are read to find old ones; not more often than this, whatever clients send."""
ATTEMPTS_MAX = 20
"""Each of the processes that start under one name at the same moment makes another one fail at most once."""

log = logging.getLogger("minibroker.producer_ids")


class NameRefused(Exception):
    """The name cannot be used like this."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class ProducerNames:
    """Answers for one broker. Raises CoordinationError where ZooKeeper does not help."""

    def __init__(
        self, coordination: Coordination, clock: Clock, next_producer_id: Callable[[], Awaitable[ProducerId]]
    ) -> None:
        self._coordination = coordination
        self._clock = clock
        self._next_producer_id = next_producer_id
        self.epochs_given = 0
        self._full_until = 0.0
        self._search = asyncio.Lock()
        """For old names: one at a time, however many producers start."""

    async def answer(self, name: str, claim: Claim) -> Identity | NotNewest:
        """For a process that starts under this name, or a running one that needs its next epoch: its identity. Raises
        NameRefused; with INVALID_PRODUCER_EPOCH if a later process has the name."""
        if not is_producer_name(name):
            text = f"{name!r:.200} is no name of a producer: 1 to {PRODUCER_NAME_MAX_LENGTH} of a-z A-Z 0-9 . _ -"
            raise NameRefused(ErrorCode.INVALID_REQUEST, text)
        for _ in range(ATTEMPTS_MAX):
            try:
                return await self._try_answer(name, claim)
            except (NodeExists, NoNode, BadVersion, WriteOutcomeUnknown) as error:
                log.debug("producer name %r: %s, trying again", name, error)
        raise NameRefused(ErrorCode.REQUEST_TIMED_OUT, f"too many producers start as {name!r} at this moment")

    async def _try_answer(self, name: str, claim: Claim) -> Identity | NotNewest:
        path = producer_name_path(name)
        try:
            content, stat = await self._coordination.get(path)
        except NoNode:
            known, version = None, 0
        else:
            known, version = _decoded(name, content), stat.version
        match decide(name, known, claim):
            case Fenced(reason):
                raise NameRefused(ErrorCode.INVALID_PRODUCER_EPOCH, reason)
            case GrantedBefore(identity):
                self.epochs_given += 1  # by a write of unknown outcome, for all that is known here
                return identity
            case NotNewest() as answer:
                return answer
        if known is None:
            await self._make_room()
        node = await self._following(NO_PRODUCER if known is None else known.identity, claim)
        if known is None:
            await self._coordination.create(path, node.encode(), make_parents=True)
        else:
            await self._coordination.set(path, node.encode(), version)
        self.epochs_given += 1
        return node.identity

    async def _following(self, newest: Identity, claim: Claim) -> ProducerNameNode:
        """The next epoch; after the last one, or where there is none, epoch 0 of a fresh id."""
        producer_id, epoch = newest
        if newest == NO_PRODUCER or epoch >= PRODUCER_EPOCH_MAX:
            producer_id, epoch = await self._next_producer_id(), -1
        replaced_id, replaced_epoch = claim.replaces
        return ProducerNameNode(
            producer_id=producer_id,
            producer_epoch=epoch + 1,
            replaced_id=replaced_id,
            replaced_epoch=replaced_epoch,
            process_token=claim.process_token,
            changed_ms=self._clock.now_ms(),
        )

    async def _make_room(self) -> None:
        """For one name more. Raises NameRefused."""
        if await self._has_room():
            return
        async with self._search:
            if asyncio.get_running_loop().time() >= self._full_until:
                if await self._has_room() or await self._forget_old():  # another search may have made room
                    return
                self._full_until = asyncio.get_running_loop().time() + LOOK_AGAIN_AFTER_S
        text = (
            f"there are {NAMES_MAX} names of producers, and no more are allowed: use fewer, or delete those that no"
            " process uses any more (`minibroker producer list`, `minibroker producer delete NAME`)"
        )
        raise NameRefused(ErrorCode.INVALID_REQUEST, text)

    async def _has_room(self) -> bool:
        stat = await self._coordination.exists(PRODUCER_NAMES)
        return stat is None or stat.num_children < NAMES_MAX

    async def _forget_old(self) -> int:
        """Returns how many."""
        oldest_ms = self._clock.now_ms() - KEPT_MS
        names = await self._coordination.get_children(PRODUCER_NAMES)
        return sum([await self._forget_if_before(producer_name_path(name), oldest_ms) for name in names])

    async def _forget_if_before(self, path: str, oldest_ms: int) -> bool:
        try:
            content, stat = await self._coordination.get(path)
            if ProducerNameNode.decode(content).changed_ms >= oldest_ms:
                return False
            await self._coordination.delete(path, stat.version)
        except (NoNode, BadVersion, CorruptZnode):
            return False
        return True


def _decoded(name: str, content: bytes) -> ProducerNameNode:
    """Raises NameRefused with the cure. No start can mend the node: it does not know which epochs were given."""
    try:
        return ProducerNameNode.decode(content)
    except CorruptZnode as error:
        text = (
            f"{producer_name_path(name)} in ZooKeeper cannot be read ({error}): once no process writes as producer"
            f" {name!r} any more, `minibroker producer delete {name}` removes it; then start again"
        )
        raise NameRefused(ErrorCode.INVALID_REQUEST, text) from None


def claim_of(request: InitProducerIdRequest) -> Claim:
    """What a request for a name says."""
    return Claim(
        process_token=request.process_token,
        running_as=None if request.producer_id < 0 else (request.producer_id, request.producer_epoch),
        newest_known=(request.newest_id, request.newest_epoch),
    )
