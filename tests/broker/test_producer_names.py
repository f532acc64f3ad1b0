"""The names of producers: no epoch is given twice, and a later start fences an earlier process."""

import asyncio
from collections.abc import Callable

import pytest

from minibroker.broker.requests.producer_ids import ProducerIds
from minibroker.broker.requests.producer_names import KEPT_MS, LOOK_AGAIN_AFTER_S, NAMES_MAX
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import PRODUCER_EPOCH_MAX
from minibroker.protocol.wire.messages import InitProducerIdRequest, InitProducerIdResponse
from minibroker.protocol.znodes import ProducerNameNode, producer_name_path
from minibroker.simulation.world.zookeeper_links import ZooKeeperRequest
from tests.broker.virtual_zookeeper import VirtualClock, World, pass_time, run


async def broker(world: World, broker_id: int) -> ProducerIds:
    return ProducerIds(await world.connect(world.process(f"broker-{broker_id}")), broker_id, world.clock)


async def ask(ids: ProducerIds, name: str, present: tuple[int, int] = (-1, -1)) -> InitProducerIdResponse:
    request = InitProducerIdRequest(transactional_id=name, producer_id=present[0], producer_epoch=present[1])
    return await ids.answer(request)


async def identity(ids: ProducerIds, name: str, present: tuple[int, int] = (-1, -1)) -> tuple[int, int]:
    answer = await ask(ids, name, present)
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    return answer.producer_id, answer.producer_epoch


async def note(world: World, name: str, epoch: int, changed_ms: int = 0) -> None:
    node = ProducerNameNode(producer_id=7, producer_epoch=epoch, changed_ms=changed_ms)
    await (await world.observer()).create(producer_name_path(name), node.encode(), make_parents=True)


def test_each_start_gets_the_same_id_with_the_next_epoch() -> None:
    async def story(world: World) -> None:
        one, two = await broker(world, 1), await broker(world, 2)
        assert [await identity(ids, "orders") for ids in (one, two, one)] == [(0, 0), (0, 1), (0, 2)]
        assert await identity(two, "payments") == (1000, 0)

    run(story)


def test_processes_that_start_together_get_different_epochs() -> None:
    async def story(world: World) -> None:
        brokers = [await broker(world, number) for number in range(5)]
        given = await asyncio.gather(*(identity(ids, "orders") for ids in brokers for _ in range(2)))
        assert len({producer_id for producer_id, _ in given}) == 1
        assert sorted(epoch for _, epoch in given) == list(range(10))

    run(story)


def test_a_running_process_gets_its_next_epoch_until_another_has_started() -> None:
    async def story(world: World) -> None:
        ids = await broker(world, 1)
        first = await identity(ids, "orders")
        second = await identity(ids, "orders", first)
        assert second == (first[0], first[1] + 1)
        assert await identity(ids, "orders") == (first[0], first[1] + 2)
        for present in (first, second, (99, 0)):
            answer = await ask(ids, "orders", present)
            assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
            assert "a later process has started as producer 'orders'" in (answer.error_message or "")

    run(story)


@pytest.mark.parametrize("epoch", [0, PRODUCER_EPOCH_MAX])
def test_a_running_process_may_repeat_a_request_whose_answer_was_lost(epoch: int) -> None:
    async def story(world: World) -> None:
        await note(world, "orders", epoch)
        ids = await broker(world, 1)
        granted = await identity(ids, "orders", (7, epoch))
        assert await identity(ids, "orders", (7, epoch)) == granted
        assert await identity(ids, "orders", granted) == (granted[0], granted[1] + 1)

    run(story)


async def start(ids: ProducerIds, process_token: str, newest: tuple[int, int]) -> InitProducerIdResponse:
    request = InitProducerIdRequest(
        transactional_id="orders", process_token=process_token, newest_id=newest[0], newest_epoch=newest[1]
    )
    return await ids.answer(request)


def test_a_start_that_was_held_up_at_one_broker_and_repeated_at_another_does_nothing() -> None:
    async def story(world: World) -> None:
        one, two = await broker(world, 1), await broker(world, 2)
        assert await identity(one, "orders") == (0, 0)
        hold = world.zookeeper.hold("broker-1")
        held_up = asyncio.ensure_future(start(one, "p", (0, 0)))
        repeated = await start(two, "p", (0, 0))
        assert (repeated.producer_id, repeated.producer_epoch) == (0, 1)
        hold.release()
        assert await held_up == repeated
        assert await identity(two, "orders", (0, 1)) == (0, 2), "its own request has not fenced it"

    run(story)


def test_a_start_is_told_which_identity_it_must_name() -> None:
    async def story(world: World) -> None:
        ids = await broker(world, 1)
        await identity(ids, "orders")
        told = await start(ids, "p", (-1, -1))
        assert (told.error_code, told.producer_id, told.newest_id, told.newest_epoch) == (ErrorCode.NONE, -1, 0, 0)
        granted = await start(ids, "p", (0, 0))
        assert (granted.producer_id, granted.producer_epoch) == (0, 1)

    run(story)


def test_a_start_finds_its_own_write_of_unknown_outcome() -> None:
    """The epoch counts as given here (`noted_changes`): an older copy of ZooKeeper's data would give it again."""

    async def story(world: World) -> None:
        ids = await broker(world, 1)
        await identity(ids, "orders")
        known = ids.changes
        world.zookeeper.lose_next_reply("broker-1")
        assert (await start(ids, "p", (0, 0))).error_code == ErrorCode.REQUEST_TIMED_OUT
        await pass_time(3)
        granted = await start(ids, "p", (0, 0))
        assert (granted.producer_id, granted.producer_epoch) == (0, 1)
        assert ids.changes > known

    run(story)


def test_a_write_whose_outcome_is_unknown_costs_an_epoch_at_most() -> None:
    async def story(world: World) -> None:
        ids = await broker(world, 1)
        await identity(ids, "orders")
        world.zookeeper.lose_next_reply("broker-1")
        answer = await ask(ids, "orders")
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        await pass_time(3)
        assert (await identity(ids, "orders"))[1] in (1, 2)

    run(story)


def test_after_the_last_epoch_comes_a_fresh_id() -> None:
    async def story(world: World) -> None:
        await note(world, "orders", PRODUCER_EPOCH_MAX)
        assert await identity(await broker(world, 1), "orders") == (0, 0)

    run(story)


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 101, "naïve"])
def test_what_is_no_name_is_refused(name: str) -> None:
    async def story(world: World) -> None:
        answer = await ask(await broker(world, 1), name)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert "is no name of a producer" in (answer.error_message or "")

    run(story)


def test_no_epoch_is_given_twice_although_the_name_was_forgotten() -> None:
    async def story(world: World) -> None:
        ids = await broker(world, 1)
        earlier, later = await identity(ids, "orders"), await identity(ids, "orders")
        await (await world.observer()).delete(producer_name_path("orders"))
        answer = await ask(ids, "orders", earlier)
        assert (answer.producer_id, answer.producer_epoch) != later
        assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH

    run(story)


def test_a_node_that_cannot_be_read_is_named_with_the_cure() -> None:
    """And no start waits for it: it does not mend itself."""

    async def story(world: World) -> None:
        await (await world.observer()).create(producer_name_path("orders"), b"{}", make_parents=True)
        for present in ((-1, -1), (7, 3)):
            answer = await ask(await broker(world, 1), "orders", present)
            assert answer.error_code == ErrorCode.INVALID_REQUEST
            text = answer.error_message or ""
            assert text.startswith("/producer_names/orders in ZooKeeper cannot be read (")
            assert "`minibroker producer delete orders`" in text

    run(story)


def test_the_refusal_of_one_name_too_many_names_the_cure() -> None:
    async def story(world: World) -> None:
        await fill_names(world, lambda number: world.clock.now_ms())
        answer = await ask(await broker(world, 1), "new")
        assert "`minibroker producer delete NAME`" in (answer.error_message or "")

    run(story)


class SetClock(VirtualClock):
    """Wall-clock time that a test moves on."""

    moved_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.moved_ms


async def fill_names(world: World, changed_ms: Callable[[int], int]) -> None:
    observer = await world.observer()
    for number in range(NAMES_MAX):
        node = ProducerNameNode(producer_id=7, producer_epoch=3, changed_ms=changed_ms(number))
        await observer.create(producer_name_path(f"name-{number}"), node.encode(), make_parents=True)


def test_only_the_oldest_names_make_room() -> None:
    async def story(world: World) -> None:
        world.clock = clock = SetClock(world.loop)
        await fill_names(world, lambda number: clock.now_ms() + (0 if number < 3 else KEPT_MS))
        ids = await broker(world, 1)
        assert (await ask(ids, "new")).error_code == ErrorCode.INVALID_REQUEST, "none is old enough"
        await pass_time(LOOK_AGAIN_AFTER_S)
        assert await identity(ids, "name-0") == (7, 4), "a known name needs no room"
        clock.moved_ms = KEPT_MS - 10_000
        assert await identity(ids, "new") == (0, 0)
        names = await (await world.observer()).get_children("/producer_names")
        assert {"name-1", "name-2"}.isdisjoint(names)
        assert {"new", "name-0", "name-3"} <= set(names)

    run(story)


def test_an_old_name_that_a_process_has_taken_again_is_not_forgotten() -> None:
    """Its new epoch would be given twice."""

    async def story(world: World) -> None:
        world.clock = clock = SetClock(world.loop)
        await fill_names(world, lambda number: clock.now_ms() + (0 if number < 3 else KEPT_MS))
        one, two = await broker(world, 1), await broker(world, 2)
        clock.moved_ms = KEPT_MS - 10_000
        await pass_time(11)
        hold = world.zookeeper.hold("broker-1", lambda request: request.kind == "write")
        making_room = asyncio.ensure_future(identity(one, "new"))
        await pass_time(1)
        assert await identity(two, "name-0") == (7, 4)
        hold.release()
        assert await making_room == (0, 0)
        assert await identity(two, "name-0") == (7, 5)

    run(story)


def test_names_are_not_searched_again_and_again() -> None:
    async def story(world: World) -> None:
        await fill_names(world, lambda number: world.clock.now_ms())
        ids = await broker(world, 1)
        before = world.loop.callbacks_run
        await ask(ids, "new")
        search, before = world.loop.callbacks_run - before, world.loop.callbacks_run
        await ask(ids, "new")
        assert world.loop.callbacks_run - before < search / 100
        await pass_time(LOOK_AGAIN_AFTER_S)
        assert (await ask(ids, "new")).error_code == ErrorCode.INVALID_REQUEST

    run(story)


def test_no_list_of_all_names_is_read_for_a_name_that_is_refused_or_has_room() -> None:
    """Only for the search for old ones, once in a while."""

    async def story(world: World) -> None:
        ids = await broker(world, 1)
        lists: list[str] = []

        def count(request: ZooKeeperRequest) -> bool:
            if request.kind == "children":
                lists.append(request.path)
            return False

        world.zookeeper.hold("broker-1", count)
        await identity(ids, "one")
        assert lists == []
        await fill_names(world, lambda number: world.clock.now_ms())
        for number in range(3):
            assert (await ask(ids, f"new-{number}")).error_code == ErrorCode.INVALID_REQUEST
        assert lists == ["/producer_names"]

    run(story)


def test_many_that_find_no_room_at_once_share_one_search() -> None:
    async def story(world: World) -> None:
        await fill_names(world, lambda number: world.clock.now_ms())
        ids = await broker(world, 1)
        before = world.loop.callbacks_run
        await ask(ids, "new")
        search = world.loop.callbacks_run - before
        await pass_time(LOOK_AGAIN_AFTER_S)
        before = world.loop.callbacks_run
        answers = await asyncio.gather(*(ask(ids, f"new-{number}") for number in range(20)))
        assert {answer.error_code for answer in answers} == {ErrorCode.INVALID_REQUEST}
        assert world.loop.callbacks_run - before < 2 * search

    run(story)


def test_all_that_wait_for_room_get_it_when_one_finds_it() -> None:
    async def story(world: World) -> None:
        world.clock = clock = SetClock(world.loop)
        await fill_names(world, lambda number: clock.now_ms())
        clock.moved_ms = KEPT_MS + 10_000
        ids = await broker(world, 1)
        given = await asyncio.gather(*(identity(ids, f"new-{number}") for number in range(5)))
        assert len(set(given)) == 5

    run(story)
