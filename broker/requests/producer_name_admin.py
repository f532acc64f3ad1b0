"""Answers ListProducerNames and DeleteProducerNames.

Owns: both answers, and what they cost at most. Leaves to others: who gets the epoch of a name (`producer_names`).

A deletion needs no version, and removes what cannot be read, too. It fences no process: one that runs under the name
keeps its epoch, and is refused its next one. The next start under the name gets a fresh producer id.
"""

import asyncio

from minibroker.broker.requests.producer_ids import ANSWER_SECONDS_MAX, waited_text
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import BrokerId
from minibroker.protocol.wire.message_types import NAME_MAX_LENGTH, PRODUCER_NAMES_MAX, clipped
from minibroker.protocol.wire.messages import (
    DeletedProducerName,
    DeleteProducerNamesRequest,
    DeleteProducerNamesResponse,
    ListedProducerName,
    ListProducerNamesRequest,
    ListProducerNamesResponse,
)
from minibroker.protocol.znodes import PRODUCER_NAMES, CorruptZnode, ProducerNameNode, producer_name_path
from minibroker.runtime.ports import Coordination, CoordinationError, NoNode


class ProducerNameAdmin:
    """Answers for one broker."""

    def __init__(self, coordination: Coordination, broker_id: BrokerId) -> None:
        self._coordination = coordination
        self._broker_id = broker_id
        self._reading = asyncio.Lock()
        """A thousand nodes are read for one list, so one list at a time."""
        self._lists_begun = 0
        self._newest_list: tuple[int, list[ListedProducerName]] = 0, []
        """With its number."""

    async def list_names(self, request: ListProducerNamesRequest) -> ListProducerNamesResponse:
        """Those that ask while a list is read share the next one."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await self._list()
        except TimeoutError:
            return ListProducerNamesResponse(
                error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=waited_text(self._broker_id)
            )

    async def _list(self) -> ListProducerNamesResponse:
        begun_before = self._lists_begun
        async with self._reading:
            if self._newest_list[0] <= begun_before:
                self._lists_begun = number = self._lists_begun + 1
                try:
                    self._newest_list = number, await self._read_all()
                except CoordinationError as error:
                    text = f"broker {self._broker_id} cannot read the names of producers now: {error}"
                    return ListProducerNamesResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=text)
            return ListProducerNamesResponse(names=self._newest_list[1])

    async def _read_all(self) -> list[ListedProducerName]:
        found = []
        for name in (await self._names())[:PRODUCER_NAMES_MAX]:
            try:
                content, _ = await self._coordination.get(producer_name_path(name))
            except NoNode:  # deleted meanwhile
                continue
            found.append(_described(name, content))
        return found

    async def _names(self) -> list[str]:
        """Also those that are no names of producers: they take room, and may be deleted."""
        try:
            names = await self._coordination.get_children(PRODUCER_NAMES)
        except NoNode:
            return []
        return [name for name in names if len(name) <= NAME_MAX_LENGTH]

    async def delete_names(self, request: DeleteProducerNamesRequest) -> DeleteProducerNamesResponse:
        now = asyncio.get_running_loop().time
        give_up_at = now() + ANSWER_SECONDS_MAX
        try:
            known = set(await self._names())
        except CoordinationError as error:
            text = f"broker {self._broker_id} cannot read the names of producers now: {error}"
            return DeleteProducerNamesResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=text)
        late = f"not tried: {waited_text(self._broker_id)} before"
        return DeleteProducerNamesResponse(
            responses=[
                _refused(name, ErrorCode.REQUEST_TIMED_OUT, late)
                if now() >= give_up_at
                else await self._delete(name, known)
                for name in request.names
            ]
        )

    async def _delete(self, name: str, known: set[str]) -> DeletedProducerName:
        unknown = _refused(name, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"no producer has the name {name!r}")
        if name not in known:
            return unknown
        try:
            await self._coordination.delete(producer_name_path(name))
        except NoNode:
            return unknown
        except CoordinationError as error:
            text = f"{name!r} may be deleted or not, see `minibroker producer list`: {error}"
            return _refused(name, ErrorCode.REQUEST_TIMED_OUT, text)
        return DeletedProducerName(name=name)


def _refused(name: str, code: ErrorCode, text: str) -> DeletedProducerName:
    return DeletedProducerName(name=name, error_code=code, error_message=clipped(text))


def _described(name: str, content: bytes) -> ListedProducerName:
    try:
        node = ProducerNameNode.decode(content)
    except CorruptZnode as error:
        return ListedProducerName(name=name, error=clipped(str(error)))
    return ListedProducerName(
        name=name, producer_id=node.producer_id, producer_epoch=node.producer_epoch, changed_ms=node.changed_ms
    )
