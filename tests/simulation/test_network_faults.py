"""Faults of the simulated network, and what crashes look like from the other end."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from minibroker.runtime.ports import ConnectionRefused, NetworkError
from minibroker.simulation.world.world import SimulatedWorld
from tests.runtime.test_network import Recorder

PORT = 9092


class Link:
    """A connection from 'client' to 'server' in a world of its own."""

    def __init__(self, seed: int = 0) -> None:
        self.world = SimulatedWorld(seed)
        self.client = Recorder()
        self.server = Recorder()

    async def open(self) -> None:
        await self.listen()
        await self.connect()
        await self.server.until_event("made")

    async def listen(self) -> None:
        await self.world.runtime("server").network.listen(lambda: self.server, "0.0.0.0", PORT)

    async def connect(self, timeout_ms: int = 1_000) -> None:
        await self.world.runtime("client").network.connect(lambda: self.client, "server", PORT, timeout_ms)


def in_a_world(case: Callable[[Link], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        link = Link()
        link.world.run(case(link))

    test.__name__, test.__doc__, test.__module__ = case.__name__, case.__doc__, case.__module__
    return test


@in_a_world
async def test_delivery_takes_time(link: Link) -> None:
    await link.open()
    began = link.world.loop.time()
    link.client.transport.write(b"x")
    await link.server.until_received(1)
    assert link.world.loop.time() - began >= link.world.network.latency.minimum


@in_a_world
async def test_every_byte_arrives_whatever_the_clock_says(link: Link) -> None:
    """Adding a delay to the time and subtracting it again may be off by the last bit."""
    await link.open()
    source = link.world.random("pauses")
    for sent in range(1, 3_001):
        await asyncio.sleep(source.expovariate(100))
        link.client.transport.write(b"x")
        async with asyncio.timeout(5):
            await link.server.until_received(sent)


def test_a_connection_may_break_while_it_is_being_made() -> None:
    for seed in range(200):
        link = Link(seed)

        async def story(link: Link = link) -> None:
            await link.listen()
            link.world.loop.call_later(link.world.random("death").uniform(0, 0.003), link.world.kill, "server")
            with contextlib.suppress(NetworkError):
                await link.connect()

        link.world.run(story())


@in_a_world
async def test_a_slow_link_delays_one_way(link: Link) -> None:
    await link.open()
    link.world.network.slow_links["client", "server"] = 3.0
    began = link.world.loop.time()
    link.client.transport.write(b"x")
    await link.server.until_received(1)
    assert link.world.loop.time() - began >= 3
    began = link.world.loop.time()
    link.server.transport.write(b"x")
    await link.client.until_received(1)
    assert link.world.loop.time() - began < 1


@in_a_world
async def test_a_cut_holds_bytes_until_it_is_healed(link: Link) -> None:
    await link.open()
    link.world.network.cut("client", "server")
    link.client.transport.write(b"one ")
    link.server.transport.write(b"other way")
    await link.client.until_received(9)
    await asyncio.sleep(60)
    assert link.server.received == b""
    link.client.transport.write(b"two")
    link.world.network.heal("client", "server")
    await link.server.until_received(7)
    assert link.server.received == b"one two"


@in_a_world
async def test_nothing_answers_over_a_cut(link: Link) -> None:
    await link.listen()
    for cut in (("client", "server"), ("server", "client")):
        link.world.network.cut(*cut)
        began = link.world.loop.time()
        with pytest.raises(NetworkError, match="no answer in 1000 ms") as caught:
            await link.connect()
        assert not isinstance(caught.value, ConnectionRefused)
        assert link.world.loop.time() - began == pytest.approx(1)
        link.world.network.heal_all()


@in_a_world
async def test_connecting_goes_on_when_the_cut_is_healed_in_time(link: Link) -> None:
    await link.listen()
    link.world.network.isolate("server")
    link.world.loop.call_later(2, link.world.network.heal_all)
    await link.connect(timeout_ms=5_000)


@in_a_world
async def test_joining_ends_an_isolation_and_every_cut_there(link: Link) -> None:
    await link.listen()
    link.world.network.cut("client", "server")
    link.world.network.isolate("server")
    link.world.network.join("server")
    await link.connect(timeout_ms=1_000)


@in_a_world
async def test_machine_without_power_sends_nothing(link: Link) -> None:
    await link.open()
    link.world.power_loss("server")
    link.client.transport.write(b"hello?")
    await asyncio.sleep(60)
    assert link.client.events == ["made"]
    with pytest.raises(NetworkError) as caught:
        await link.connect()
    assert not isinstance(caught.value, ConnectionRefused)


@in_a_world
async def test_machine_that_is_up_again_resets_what_is_resent_to_it(link: Link) -> None:
    await link.open()
    link.world.power_loss("server")
    link.client.transport.write(b"hello?")
    link.world.runtime("server")
    await link.client.until_event("lost")
    assert isinstance(link.client.lost_with, ConnectionResetError)


@in_a_world
async def test_writing_to_a_restarted_machine_is_reset(link: Link) -> None:
    await link.open()
    link.world.power_loss("server")
    link.world.runtime("server")
    await asyncio.sleep(5)
    assert link.client.events == ["made"]
    link.client.transport.write(b"hello?")
    await link.client.until_event("lost")


@in_a_world
async def test_a_machine_that_is_cut_off_refuses_nothing_though_its_process_is_dead(link: Link) -> None:
    """A refusal is an answer, and needs a link back."""
    await link.open()
    link.world.network.cut("server", "client")
    link.world.kill("server")
    with pytest.raises(NetworkError, match="no answer in 1000 ms") as caught:
        await link.connect()
    assert not isinstance(caught.value, ConnectionRefused)
    assert link.client.events == ["made"]
    link.world.network.heal_all()
    await link.client.until_event("lost")
    with pytest.raises(ConnectionRefused):
        await link.connect()


@in_a_world
async def test_a_killed_process_does_not_end_a_connection_that_it_had_lost(link: Link) -> None:
    await link.open()
    link.world.network.half_open("server", "client")
    await link.server.until_event("lost")
    link.world.kill("server")
    await asyncio.sleep(60)
    assert link.client.events == ["made"]


@in_a_world
async def test_a_firewall_rejects_one_machine_and_the_process_behind_it_lives(link: Link) -> None:
    await link.open()
    link.world.network.reject("client", "server")
    await link.client.until_event("lost")
    await link.server.until_event("lost")
    assert isinstance(link.client.lost_with, ConnectionResetError)
    with pytest.raises(ConnectionRefused):
        await link.connect()
    other = Recorder()
    await link.world.runtime("other").network.connect(lambda: other, "server", PORT, 1_000)
    link.server = Recorder()
    await link.world.runtime("server").network.connect(Recorder, "127.0.0.1", PORT, 1_000)
    assert link.world.is_alive("server")
    link.world.network.reject_no_more("client", "server")
    link.server = Recorder()
    await link.connect()


@in_a_world
async def test_a_firewall_rejects_all_but_the_machine_itself_and_its_own_connections(link: Link) -> None:
    await link.open()
    await link.world.runtime("client").network.listen(Recorder, "0.0.0.0", PORT)
    asked = Recorder()
    await link.world.runtime("server").network.connect(lambda: asked, "client", PORT, 1_000)
    link.world.network.reject(None, "server")
    await link.client.until_event("lost")
    for host in ("client", "a machine that did not exist"):
        with pytest.raises(ConnectionRefused):
            await link.world.runtime(host).network.connect(Recorder, "server", PORT, 1_000)
    link.server = Recorder()
    await link.world.runtime("server").network.connect(Recorder, "server", PORT, 1_000)
    await link.world.runtime("server").network.connect(Recorder, "client", PORT, 1_000)
    assert asked.events == ["made"]
    link.world.network.heal_all()
    link.server = Recorder()
    await link.connect()


@in_a_world
async def test_a_cut_link_sends_no_refusal_even_with_a_firewall(link: Link) -> None:
    await link.listen()
    link.world.network.reject("client", "server")
    link.world.network.cut("client", "server")
    with pytest.raises(NetworkError, match="no answer in 1000 ms"):
        await link.connect()


@in_a_world
async def test_contacts_between_machines_are_recorded_for_checkers(link: Link) -> None:
    await link.open()
    seen = link.world.network.contact("client", "server")
    assert seen.made_at is not None
    assert (seen.lost_at, seen.refused_at) == (None, None)
    await asyncio.sleep(1)
    link.world.kill("server")
    await link.client.until_event("lost")
    with pytest.raises(ConnectionRefused):
        await link.connect()
    assert seen.lost_at is not None
    assert seen.refused_at is not None
    assert seen.made_at < seen.lost_at < seen.refused_at


@in_a_world
async def test_a_connection_that_a_machine_closes_itself_is_not_lost(link: Link) -> None:
    await link.open()
    link.client.transport.close()
    await link.server.until_event("lost")
    await asyncio.sleep(1)
    assert link.world.network.contact("client", "server").lost_at is None
    assert link.world.network.contact("server", "client").lost_at is not None


@in_a_world
async def test_paused_process_accepts_and_reads_later(link: Link) -> None:
    await link.listen()
    link.world.pause("server")
    await link.connect()
    link.client.transport.write(b"waiting")
    await asyncio.sleep(10)
    assert link.server.events == []
    link.world.resume("server")
    await link.server.until_received(7)


@in_a_world
async def test_paused_reader_makes_its_writer_wait(link: Link) -> None:
    await link.open()
    link.world.pause("server")
    link.client.transport.write(b"x" * 1_000_000)
    assert link.client.writer_paused
    await asyncio.sleep(10)
    assert link.client.writer_paused
    link.world.resume("server")
    await link.client.until_event("resume")
    await link.server.until_received(1_000_000)


def test_reset_may_cut_a_frame_anywhere() -> None:
    received: set[int] = set()

    async def case(link: Link) -> None:
        await link.open()
        link.client.transport.write(b"0123456789")
        assert link.world.network.reset_connections("client", "server") == 1
        await link.client.until_event("lost")
        await link.server.until_event("lost")
        received.add(len(link.server.received))

    for seed in range(60):
        link = Link(seed)
        link.world.run(case(link))
    assert len(received) > 5


def test_reads_are_split_now_and_then() -> None:
    sizes: list[int] = []

    class Counting(Recorder):
        def buffer_updated(self, nbytes: int) -> None:
            sizes.append(nbytes)
            super().buffer_updated(nbytes)

    async def case(link: Link) -> None:
        link.server = Counting()
        await link.open()
        for number in range(300):
            link.client.transport.write(b"0123456789")
            await link.server.until_received(10 * (number + 1))

    link = Link()
    link.world.run(case(link))
    assert len(set(sizes)) > 3
    assert sizes.count(10) > 250


@in_a_world
async def test_connection_that_is_reset_before_it_is_accepted_is_never_made(link: Link) -> None:
    await link.listen()
    link.world.pause("server")
    await link.connect()
    link.client.transport.abort()
    await asyncio.sleep(1)
    link.world.resume("server")
    await asyncio.sleep(1)
    assert link.server.events in ([], ["made", "lost"])


@pytest.mark.parametrize("host", ["elsewhere", "10.0.0.1"])
def test_a_machine_listens_on_its_own_addresses_only(host: str) -> None:
    link = Link()

    async def case() -> None:
        with pytest.raises(NetworkError, match=host):
            await link.world.runtime("server").network.listen(Recorder, host, PORT)

    link.world.run(case())


@in_a_world
async def test_two_machines_may_use_the_same_port(link: Link) -> None:
    await link.listen()
    listener = await link.world.runtime("client").network.listen(Recorder, "127.0.0.1", PORT)
    assert listener.port == PORT


@in_a_world
async def test_connections_of_a_link_share_its_limited_bandwidth(link: Link) -> None:
    await link.open()
    second = Recorder()
    await link.world.runtime("client").network.connect(lambda: second, "server", PORT, 1_000)
    link.world.network.bandwidth["client", "server"] = 1_000.0
    began = link.world.loop.time()
    link.client.transport.write(b"x" * 1_000)
    second.transport.write(b"y" * 1_000)
    await link.server.until_received(2_000)
    assert 2.0 <= link.world.loop.time() - began < 2.1
    link.server.transport.write(b"z" * 10_000)
    began = link.world.loop.time()
    await asyncio.sleep(0.1)
    assert len(link.client.received) + len(second.received) == 10_000, "the other direction is unlimited"


@in_a_world
async def test_an_idle_link_delays_only_its_next_bytes(link: Link) -> None:
    await link.open()
    link.world.network.bandwidth["client", "server"] = 1_000.0
    for number in range(3):
        await asyncio.sleep(5.0)
        began = link.world.loop.time()
        link.client.transport.write(b"x" * 1_000)
        await link.server.until_received(1_000 * (number + 1))
        assert 1.0 <= link.world.loop.time() - began < 1.1


@in_a_world
async def test_a_half_open_connection_is_noticed_by_the_end_that_sends(link: Link) -> None:
    await link.open()
    assert link.world.network.half_open("server", "client") == 1
    await link.server.until_event("lost")
    await asyncio.sleep(30)
    assert "lost" not in link.client.events
    link.client.transport.write(b"hello?")
    await link.client.until_event("lost")
    assert isinstance(link.client.lost_with, ConnectionResetError)
    assert bytes(link.server.received) == b""


@in_a_world
async def test_healing_removes_slowness(link: Link) -> None:
    await link.open()
    link.world.network.bandwidth["client", "server"] = 1.0
    link.world.network.slow_links["client", "server"] = 5.0
    link.world.network.heal_all()
    link.client.transport.write(b"x" * 1_000)
    await asyncio.sleep(0.1)
    assert len(link.server.received) == 1_000
