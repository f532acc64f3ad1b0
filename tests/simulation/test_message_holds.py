"""Message holds: what a test may hold, drop and count, and what stays as in TCP."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from minibroker.protocol.wire.codec import encode_request, encode_response
from minibroker.protocol.wire.messages import (
    ApiKey,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    Request,
)
from minibroker.simulation.world.message_holds import FRAME_MAX_BYTES, requests, responses
from minibroker.simulation.world.world import SimulatedWorld
from tests.runtime.test_network import Recorder

PORT = 9092
LONG_SECONDS = 5.0
"""Virtual seconds after which everything in flight has arrived."""


def request(body: Request, correlation_id: int) -> bytes:
    return b"".join(encode_request(body, correlation_id, "client"))


METADATA = request(MetadataRequest(), 1)
VERSIONS = request(ApiVersionsRequest(), 2)
METADATA_REPLY = b"".join(encode_response(1, MetadataResponse()))
VERSIONS_REPLY = b"".join(encode_response(2, ApiVersionsResponse()))


class Link:
    """A connection from 'client' to 'server' in a world of its own."""

    def __init__(self) -> None:
        self.world = SimulatedWorld(0)
        self.network = self.world.network
        self.client = Recorder()
        self.server = Recorder()

    async def open(self) -> None:
        await self.world.runtime("server").network.listen(lambda: self.server, "0.0.0.0", PORT)
        await self.world.runtime("client").network.connect(lambda: self.client, "server", PORT, 1_000)
        await self.server.until_event("made")

    def ask(self, *frames: bytes) -> None:
        for frame in frames:
            self.client.transport.write(frame)

    def reply(self, *frames: bytes) -> None:
        for frame in frames:
            self.server.transport.write(frame)


def in_a_world(case: Callable[[Link], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        link = Link()

        async def run() -> None:
            await link.open()
            await case(link)

        link.world.run(run())

    test.__name__, test.__doc__, test.__module__ = case.__name__, case.__doc__, case.__module__
    return test


@in_a_world
async def test_a_hold_keeps_matching_frames_and_those_after_them(link: Link) -> None:
    link.network.hold("client", "server", requests(ApiKey.API_VERSIONS))
    link.ask(METADATA, VERSIONS, METADATA)
    await asyncio.sleep(LONG_SECONDS)
    assert bytes(link.server.received) == METADATA


@in_a_world
async def test_a_frame_is_held_even_if_it_comes_with_others_or_in_pieces(link: Link) -> None:
    link.network.hold("client", "server", requests(ApiKey.API_VERSIONS))
    stream = METADATA + METADATA + VERSIONS + METADATA
    for start in range(0, len(stream), 7):
        link.ask(stream[start : start + 7])
    await asyncio.sleep(LONG_SECONDS)
    assert bytes(link.server.received) == METADATA + METADATA


@in_a_world
async def test_a_released_hold_passes_everything_in_order(link: Link) -> None:
    hold = link.network.hold("client", "server", requests(ApiKey.API_VERSIONS))
    link.ask(METADATA, VERSIONS, METADATA, VERSIONS)
    await hold.caught()
    hold.release()
    await link.server.until_received(2 * len(METADATA + VERSIONS))
    assert bytes(link.server.received) == 2 * (METADATA + VERSIONS)
    assert [frame.api for frame in hold.seen] == [ApiKey.API_VERSIONS]


@in_a_world
async def test_one_frame_may_pass_while_the_next_is_held(link: Link) -> None:
    hold = link.network.hold("client", "server", requests(ApiKey.API_VERSIONS))
    link.ask(VERSIONS, METADATA, VERSIONS, METADATA)
    await hold.caught()
    hold.let_one_pass()
    await hold.caught()
    await asyncio.sleep(LONG_SECONDS)
    assert bytes(link.server.received) == VERSIONS + METADATA
    assert len(hold.seen) == 2


@in_a_world
async def test_responses_are_matched_by_their_request(link: Link) -> None:
    hold = link.network.hold("server", "client", responses(ApiKey.API_VERSIONS))
    link.ask(METADATA, VERSIONS)
    await link.server.until_received(len(METADATA + VERSIONS))
    link.reply(METADATA_REPLY, VERSIONS_REPLY)
    caught = await hold.caught()
    await asyncio.sleep(LONG_SECONDS)
    assert isinstance(caught.message(), ApiVersionsResponse)
    assert str(caught) == "API_VERSIONS response server->client"
    assert bytes(link.client.received) == METADATA_REPLY
    hold.release()
    await link.client.until_received(len(METADATA_REPLY + VERSIONS_REPLY))


@in_a_world
async def test_a_hold_may_match_the_message_body(link: Link) -> None:
    hold = link.network.hold(match=lambda frame: frame.message() == MetadataRequest(topics=None))
    link.ask(VERSIONS)
    await link.server.until_received(len(VERSIONS))
    assert hold.seen == []


@in_a_world
async def test_the_other_direction_is_not_held(link: Link) -> None:
    hold = link.network.hold("client", "server")
    link.ask(METADATA)
    await hold.caught()
    link.reply(METADATA_REPLY)
    await link.client.until_received(len(METADATA_REPLY))
    assert bytes(link.server.received) == b""


@in_a_world
async def test_held_frames_outlive_their_sender(link: Link) -> None:
    hold = link.network.hold("client", "server")
    link.ask(METADATA)
    await hold.caught()
    link.world.kill("client")
    await asyncio.sleep(LONG_SECONDS)
    assert "lost" not in link.server.events
    hold.release()
    await link.server.until_event("lost")
    assert bytes(link.server.received) == METADATA


@in_a_world
async def test_a_dropped_hold_loses_its_frames_with_the_connection(link: Link) -> None:
    hold = link.network.hold("client", "server", requests(ApiKey.API_VERSIONS))
    link.ask(METADATA, VERSIONS, METADATA)
    await hold.caught()
    hold.drop()
    await link.server.until_event("lost")
    await link.client.until_event("lost")
    assert bytes(link.server.received) == METADATA


@in_a_world
async def test_dropped_frames_break_their_connection_at_once(link: Link) -> None:
    hold = link.network.drop_frames("client", "server", requests(ApiKey.API_VERSIONS), times=1)
    link.ask(METADATA, VERSIONS, METADATA)
    await link.server.until_event("lost")
    await link.client.until_event("lost")
    assert bytes(link.server.received) == METADATA
    assert len(hold.seen) == 1


@in_a_world
async def test_a_lost_reply_follows_a_request_that_was_delivered(link: Link) -> None:
    link.network.lose_replies("client", "server", ApiKey.METADATA)
    link.ask(METADATA)
    await link.server.until_received(len(METADATA))
    link.reply(METADATA_REPLY)
    await link.client.until_event("lost")
    assert bytes(link.client.received) == b""


@in_a_world
async def test_counted_frames_pass(link: Link) -> None:
    hold = link.network.count_frames("client", "server", requests(ApiKey.METADATA))
    link.ask(METADATA, VERSIONS, METADATA)
    await link.server.until_received(len(METADATA + VERSIONS + METADATA))
    assert len(hold.seen) == 2


@in_a_world
async def test_the_end_of_the_stream_waits_after_a_held_frame(link: Link) -> None:
    hold = link.network.hold("client", "server")
    link.ask(METADATA)
    link.client.transport.close()
    await hold.caught()
    await asyncio.sleep(LONG_SECONDS)
    assert "eof" not in link.server.events
    hold.release()
    await link.server.until_event("eof")
    assert bytes(link.server.received) == METADATA


@in_a_world
async def test_bytes_that_are_no_frames_and_too_long_frames_pass(link: Link) -> None:
    hold = link.network.hold("client", "server")
    long = (2 * FRAME_MAX_BYTES).to_bytes(4, "big") + bytes(2 * FRAME_MAX_BYTES)
    link.ask(long, b"\x00\x00\x00\x04GET ", b"more")
    await link.server.until_received(len(long) + 12)
    assert hold.seen == []


@in_a_world
async def test_a_hold_made_during_a_long_write_applies_from_the_next_one(link: Link) -> None:
    link.server.transport.pause_reading()
    frame = (1_000_000).to_bytes(4, "big") + bytes(1_000_000)
    link.ask(frame)
    await asyncio.sleep(LONG_SECONDS)
    hold = link.network.hold("client", "server")
    link.server.transport.resume_reading()
    await link.server.until_received(len(frame))
    link.ask(METADATA)
    await hold.caught()
    assert len(link.server.received) == len(frame)


@in_a_world
async def test_healing_the_network_opens_every_hold(link: Link) -> None:
    hold = link.network.hold("client", "server")
    link.ask(METADATA)
    await hold.caught()
    link.network.heal_all()
    await link.server.until_received(len(METADATA))
