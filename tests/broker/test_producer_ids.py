"""Producer ids: never the same twice, whatever ZooKeeper does."""

import asyncio
from typing import Any, cast

import pytest

from minibroker.broker.requests.producer_ids import ANSWER_SECONDS_MAX, BLOCK_SIZE, ProducerIds, ProducerIdsUnavailable
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import InitProducerIdRequest
from minibroker.protocol.znodes import PRODUCER_ID_BLOCK, ProducerIdBlock
from minibroker.runtime.ports import Coordination, WriteOutcomeUnknown
from tests.broker.virtual_zookeeper import World, pass_time, run


async def ids_of(world: World, broker_id: int) -> ProducerIds:
    return ProducerIds(await world.connect(world.process(f"broker-{broker_id}")), broker_id, world.clock)


def test_ids_count_up_through_blocks() -> None:
    async def story(world: World) -> None:
        ids = await ids_of(world, 1)
        assert [await ids.next_producer_id() for _ in range(2 * BLOCK_SIZE + 1)] == list(range(2 * BLOCK_SIZE + 1))

    run(story)


def test_the_block_in_zookeeper_has_kafkas_format() -> None:
    async def story(world: World) -> None:
        ids = await ids_of(world, 7)
        await ids.next_producer_id()
        content, _ = await (await world.observer()).get(PRODUCER_ID_BLOCK)
        assert ProducerIdBlock.decode(content) == ProducerIdBlock(broker=7, block_start="0", block_end="999")

    run(story)


def test_brokers_never_share_an_id() -> None:
    async def story(world: World) -> None:
        brokers = [await ids_of(world, number) for number in range(5)]
        given = await asyncio.gather(*(ids.next_producer_id() for ids in brokers for _ in range(3)))
        assert len(set(given)) == len(given)
        assert len({number // BLOCK_SIZE for number in given}) == len(brokers)

    run(story)


def test_a_broker_gives_no_id_of_a_later_block_that_another_has_taken() -> None:
    async def story(world: World) -> None:
        brokers = [await ids_of(world, number) for number in range(2)]
        given = [await ids.next_producer_id() for _ in range(3) for ids in brokers for _ in range(BLOCK_SIZE)]
        assert sorted(given) == list(range(6 * BLOCK_SIZE))

    run(story)


def test_producers_that_start_together_share_one_block() -> None:
    async def story(world: World) -> None:
        ids = await ids_of(world, 1)
        given = await asyncio.gather(*(ids.next_producer_id() for _ in range(50)))
        assert sorted(given) == list(range(50))

    run(story)


def test_block_whose_write_got_no_answer_is_left_alone() -> None:
    async def story(world: World) -> None:
        ids = await ids_of(world, 1)
        await ids.next_producer_id()
        other = await ids_of(world, 2)
        world.zookeeper.lose_next_reply("broker-2")
        with pytest.raises(ProducerIdsUnavailable, match="ZooKeeper cannot be reached"):
            await other.next_producer_id()
        await pass_time(3)
        assert await other.next_producer_id() == 2 * BLOCK_SIZE

    run(story)


def test_ids_of_the_block_are_given_while_zookeeper_is_away() -> None:
    async def story(world: World) -> None:
        ids = await ids_of(world, 1)
        await ids.next_producer_id()
        world.zookeeper.stop()
        assert await ids.next_producer_id() == 1

    run(story)


def test_unreadable_block_gives_no_ids() -> None:
    async def story(world: World) -> None:
        await (await world.observer()).create(PRODUCER_ID_BLOCK, b"{}")
        with pytest.raises(ProducerIdsUnavailable, match=PRODUCER_ID_BLOCK):
            await (await ids_of(world, 1)).next_producer_id()

    run(story)


def test_last_block_is_the_last() -> None:
    async def story(world: World) -> None:
        last = ProducerIdBlock(broker=1, block_start="0", block_end=str(2**63 - 500))
        await (await world.observer()).create(PRODUCER_ID_BLOCK, last.encode())
        with pytest.raises(ProducerIdsUnavailable, match="no ids are left"):
            await (await ids_of(world, 1)).next_producer_id()

    run(story)


# InitProducerId


@pytest.mark.parametrize(
    ("producer_id", "producer_epoch", "expected"),
    [(-1, -1, (0, 0)), (17, 0, (17, 1)), (17, 32_766, (17, 32_767)), (17, 32_767, (0, 0))],
)
def test_new_producer_gets_an_id_and_a_known_one_its_next_epoch(
    producer_id: int, producer_epoch: int, expected: tuple[int, int]
) -> None:
    async def story(world: World) -> None:
        ids = await ids_of(world, 1)
        answer = await ids.answer(InitProducerIdRequest(producer_id=producer_id, producer_epoch=producer_epoch))
        assert (answer.producer_id, answer.producer_epoch) == expected
        assert answer.error_code == ErrorCode.NONE

    run(story)


def test_a_contradictory_request_is_refused() -> None:
    async def story(world: World) -> None:
        answer = await (await ids_of(world, 1)).answer(InitProducerIdRequest(producer_id=17))
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert answer.producer_id == -1

    run(story)


def test_without_zookeeper_the_producer_gets_a_retriable_error() -> None:
    async def story(world: World) -> None:
        ids = await ids_of(world, 1)
        world.zookeeper.stop()
        await pass_time(0.1)
        answer = await ids.answer(InitProducerIdRequest())
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "ZooKeeper" in (answer.error_message or "")

    run(story)


class StuckWrites:
    """ZooKeeper answers reads, and its writes wait for a disk or a quorum."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordination, name)

    async def create(self, *_: object, **__: object) -> None:
        await asyncio.sleep(6)
        raise WriteOutcomeUnknown("no answer")


@pytest.mark.parametrize("name", [None, "n"])
def test_no_producer_waits_longer_than_its_client_while_writes_to_zookeeper_are_stuck(name: str | None) -> None:
    """Each of them made twenty attempts, one after the other, so two hundred requests, all that may be under way, took
    the places of other administrative requests for hours."""

    async def story(world: World) -> None:
        coordination = StuckWrites(await world.connect(world.process("broker-1")))
        ids = ProducerIds(cast(Coordination, coordination), 1, world.clock)
        began = world.loop.time()
        answers = await asyncio.gather(*(ids.answer(InitProducerIdRequest(transactional_id=name)) for _ in range(50)))
        assert {answer.error_code for answer in answers} == {ErrorCode.REQUEST_TIMED_OUT}
        assert world.loop.time() - began < ANSWER_SECONDS_MAX + 1

    run(story)
