"""Listing and deleting the names of producers, those whose nodes cannot be read included."""

import asyncio
from typing import Any, cast

from minibroker.broker.requests.producer_ids import ANSWER_SECONDS_MAX, ProducerIds
from minibroker.broker.requests.producer_name_admin import ProducerNameAdmin
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    DeleteProducerNamesRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListProducerNamesRequest,
    ListProducerNamesResponse,
)
from minibroker.protocol.znodes import PRODUCER_NAMES, ProducerNameNode, producer_name_path
from minibroker.runtime.ports import Coordination
from minibroker.simulation.world.zookeeper_links import ZooKeeperRequest
from tests.broker.virtual_zookeeper import World, run


async def admin(world: World) -> ProducerNameAdmin:
    return ProducerNameAdmin(await world.connect(world.process("broker-1")), 1)


async def note(world: World, name: str, content: bytes | None = None) -> None:
    node = ProducerNameNode(producer_id=7, producer_epoch=3, changed_ms=1_000)
    observer = await world.observer()
    await observer.create(producer_name_path(name), node.encode() if content is None else content, make_parents=True)


async def listed(names: ProducerNameAdmin) -> list[str]:
    return [each.name for each in (await names.list_names(ListProducerNamesRequest())).names]


async def delete(names: ProducerNameAdmin, *asked: str) -> list[tuple[str, int]]:
    answer = await names.delete_names(DeleteProducerNamesRequest(names=list(asked)))
    assert answer.error_code == ErrorCode.NONE
    return [(each.name, each.error_code) for each in answer.responses]


def test_names_are_listed_with_their_newest_epoch() -> None:
    async def story(world: World) -> None:
        names = await admin(world)
        assert await listed(names) == []
        await note(world, "orders")
        await note(world, "bills")
        bills, orders = (await names.list_names(ListProducerNamesRequest())).names
        assert (bills.name, orders.name) == ("bills", "orders")
        assert (orders.producer_id, orders.producer_epoch, orders.changed_ms, orders.error) == (7, 3, 1_000, None)

    run(story)


def test_a_name_that_cannot_be_read_is_listed_with_the_reason_and_can_be_deleted() -> None:
    async def story(world: World) -> None:
        names = await admin(world)
        await note(world, "orders", b"garbage")
        await note(world, "no name", b"")
        unnamed, broken = (await names.list_names(ListProducerNamesRequest())).names
        assert (broken.name, broken.producer_id) == ("orders", -1)
        assert "/producer_names" in (broken.error or "")
        assert unnamed.error
        assert await delete(names, "orders", "no name") == [("orders", 0), ("no name", 0)]
        assert await listed(names) == []

    run(story)


def test_a_name_that_does_not_exist_is_refused() -> None:
    async def story(world: World) -> None:
        names = await admin(world)
        unknown = int(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        assert await delete(names, "orders") == [("orders", unknown)]
        await note(world, "orders")
        assert await delete(names, "other", "orders", "..", "a/b", "") == [
            ("other", unknown),
            ("orders", 0),
            *(("..", unknown), ("a/b", unknown), ("", unknown)),
        ]
        assert await delete(names, "orders") == [("orders", unknown)]

    run(story)


def test_a_deletion_of_unknown_outcome_is_no_success() -> None:
    async def story(world: World) -> None:
        names = await admin(world)
        await note(world, "orders")
        world.zookeeper.lose_next_reply("broker-1")
        (deleted,) = (await names.delete_names(DeleteProducerNamesRequest(names=["orders"]))).responses
        assert deleted.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "'orders' may be deleted or not" in (deleted.error_message or "")

    run(story)


def test_without_zookeeper_both_answer_that_it_takes_too_long() -> None:
    async def story(world: World) -> None:
        names = await admin(world)
        await note(world, "orders")
        world.zookeeper.cut("broker-1")
        asked = await names.list_names(ListProducerNamesRequest())
        deleted = await names.delete_names(DeleteProducerNamesRequest(names=["orders"]))
        for answer in (asked, deleted):
            assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert (answer.error_message or "").startswith("broker 1 ")

    run(story)


def test_those_that_ask_for_the_list_at_the_same_time_share_it() -> None:
    """One that is read already is no answer to a later question: its asker may have deleted a name meanwhile."""

    async def story(world: World) -> None:
        names = await admin(world)
        for number in range(5):
            await note(world, f"name-{number}")
        lists = 0

        def count(request: ZooKeeperRequest) -> bool:
            nonlocal lists
            lists += request.kind == "children" and request.path == PRODUCER_NAMES
            return False

        world.zookeeper.hold("broker-1", count)

        async def ask() -> ListProducerNamesResponse:
            return await names.list_names(ListProducerNamesRequest())

        first = asyncio.ensure_future(ask())
        await asyncio.sleep(0)
        answers = await asyncio.gather(first, *(ask() for _ in range(20)))
        assert {len(answer.names) for answer in answers} == {5}
        assert lists == 2
        await delete(names, "name-0")
        assert len(await listed(names)) == 4

    run(story)


def test_a_living_process_of_a_deleted_name_gets_no_other_epoch() -> None:
    async def story(world: World) -> None:
        names = await admin(world)
        ids = ProducerIds(await world.connect(world.process("broker-2")), 2, world.clock)

        async def ask(present: tuple[int, int] = (-1, -1)) -> InitProducerIdResponse:
            request = InitProducerIdRequest(
                transactional_id="orders", process_token="p", producer_id=present[0], producer_epoch=present[1]
            )
            return await ids.answer(request)

        living = await ask()
        await delete(names, "orders")
        refused = await ask((living.producer_id, living.producer_epoch))
        assert refused.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert "'orders' was forgotten" in (refused.error_message or "")
        later = await ask()
        assert (later.producer_id, later.producer_epoch) == (living.producer_id + 1, 0)

    run(story)


class Slow:
    """ZooKeeper needs a second for each answer."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    def __getattr__(self, name: str) -> Any:
        async def asked(*arguments: Any) -> Any:
            await asyncio.sleep(1)
            return await getattr(self._coordination, name)(*arguments)

        return asked


def test_neither_waits_longer_than_its_client_for_a_slow_zookeeper() -> None:
    """Each takes one of the few places for administrative requests until then. What is not tried says so."""

    async def story(world: World) -> None:
        names = [f"name-{number}" for number in range(100)]
        for name in names:
            await note(world, name)
        slow = Slow(await world.connect(world.process("broker-1")))
        answering = ProducerNameAdmin(cast(Coordination, slow), 1)
        began = world.loop.time()
        answers = await asyncio.gather(*(answering.list_names(ListProducerNamesRequest()) for _ in range(3)))
        assert {answer.error_code for answer in answers} == {ErrorCode.REQUEST_TIMED_OUT}
        assert world.loop.time() - began < ANSWER_SECONDS_MAX + 1
        began = world.loop.time()
        deleted = (await answering.delete_names(DeleteProducerNamesRequest(names=names))).responses
        assert world.loop.time() - began <= ANSWER_SECONDS_MAX + 2
        assert [each.name for each in deleted] == names
        left = [each.name for each in deleted if each.error_code == ErrorCode.REQUEST_TIMED_OUT]
        assert 0 < len(left) < 100
        assert await listed(await admin(world)) == sorted(left)

    run(story)
