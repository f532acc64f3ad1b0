"""/metrics, /healthz and /readyz, and the limits for bad clients; on the virtual network."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from minibroker.broker.monitoring.http_endpoint import (
    CONNECTIONS_MAX,
    DEADLINE_SECONDS,
    HEAD_BYTES_MAX,
    HttpAnswer,
    HttpEndpoint,
    broker_routes,
)
from minibroker.broker.monitoring.metrics import BrokerCounters, BrokerGauges, Readiness
from minibroker.broker.monitoring.prometheus_page import make_page, metrics_of
from minibroker.protocol.wire.messages import ApiKey
from minibroker.runtime.ports import NetworkError
from minibroker.simulation.world.world import SimulatedWorld

PORT = 9404


class Reader(asyncio.BufferedProtocol):
    """The client's side of one connection."""

    def __init__(self) -> None:
        self.received = b""
        self.ended = asyncio.get_running_loop().create_future()
        self._buffer = bytearray(65536)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += bytes(self._buffer[:nbytes])

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class Site:
    """A served endpoint and a client."""

    def __init__(self, world: SimulatedWorld, endpoint: HttpEndpoint) -> None:
        self._world = world
        self.endpoint = endpoint

    async def open(self) -> tuple[Any, Reader]:
        network = self._world.runtime("client").network
        transport, reader = await network.connect(Reader, "broker", PORT, 1000)
        assert isinstance(reader, Reader)
        return transport, reader

    async def ask(self, *pieces: bytes) -> bytes:
        """Send the pieces one by one; returns everything received until the end."""
        transport, reader = await self.open()
        for piece in pieces:
            transport.write(piece)
            await asyncio.sleep(0.01)
        await reader.ended
        return reader.received


def serve(story: Callable[[Site], Awaitable[None]], routes: dict[str, Callable[[], HttpAnswer]] | None = None) -> None:
    world = SimulatedWorld()

    async def main() -> None:
        hello = {"/hello": lambda: HttpAnswer(200, b"hello\n")}
        endpoint = HttpEndpoint(world.runtime("broker").network, routes or hello)
        await world.spawn("broker", endpoint.start("broker", PORT))
        await story(Site(world, endpoint))
        await world.spawn("broker", endpoint.stop())

    world.run(main())


def status(response: bytes) -> int:
    return int(response.split(b" ", 2)[1])


def test_answer_carries_its_length_and_ends_the_connection() -> None:
    async def story(site: Site) -> None:
        assert await site.ask(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n") == (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 6\r\n"
            b"Connection: close\r\n\r\nhello\n"
        )

    serve(story)


@pytest.mark.parametrize(
    "request_",
    [b"GET /hello?a=b HTTP/1.0\r\n\r\n", b"GET /hello HTTP/1.1\n\n", b"GET /hello HTTP/1.1\r\nA: b\r\n\r\nmore"],
)
def test_plain_requests_are_understood(request_: bytes) -> None:
    async def story(site: Site) -> None:
        assert (await site.ask(request_)).endswith(b"\r\n\r\nhello\n")

    serve(story)


def test_request_may_come_byte_by_byte() -> None:
    async def story(site: Site) -> None:
        request = b"GET /hello HTTP/1.1\r\n\r\n"
        assert (await site.ask(*(request[i : i + 1] for i in range(len(request))))).endswith(b"hello\n")

    serve(story)


def test_a_stopped_endpoint_ends_its_connections_and_takes_no_others() -> None:
    async def story(site: Site) -> None:
        _, reader = await site.open()
        await site.endpoint.stop()
        await reader.ended
        with pytest.raises(NetworkError):
            await site.open()

    serve(story)


def test_head_has_no_body() -> None:
    async def story(site: Site) -> None:
        response = await site.ask(b"HEAD /hello HTTP/1.1\r\n\r\n")
        assert b"Content-Length: 6" in response
        assert response.endswith(b"\r\n\r\n")

    serve(story)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", 404),
        (b"POST /hello HTTP/1.1\r\n\r\n", 405),
        (b"GET /hello HTTP/2.0\r\n\r\n", 505),
        (b"GET /hello\r\n\r\n", 400),
        (b"\x00\x00\x00\x10\xff\xff\r\n\r\n", 400),
        (b"\n\n", 400),
        (b"GET /" + b"a" * HEAD_BYTES_MAX, 431),
    ],
)
def test_wrong_requests_are_answered_with_their_status(request_: bytes, expected: int) -> None:
    async def story(site: Site) -> None:
        assert status(await site.ask(request_)) == expected
        assert status(await site.ask(b"GET /hello HTTP/1.1\r\n\r\n")) == 200

    serve(story)


def test_failing_route_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> HttpAnswer:
        raise RuntimeError("broken on purpose")

    async def story(site: Site) -> None:
        assert status(await site.ask(b"GET /fail HTTP/1.1\r\n\r\n")) == 500

    serve(story, {"/fail": fail})
    assert "broken on purpose" in caplog.text


def test_silent_client_is_cut_off() -> None:
    async def story(site: Site) -> None:
        began = asyncio.get_running_loop().time()
        assert await site.ask(b"GET /hel") == b""
        assert asyncio.get_running_loop().time() - began < DEADLINE_SECONDS + 1

    serve(story)


def test_idle_connections_do_not_block_new_requests() -> None:
    """Twenty idle connections blocked /healthz for ten seconds, and a supervisor would have ended the broker."""

    async def story(site: Site) -> None:
        connections = [await site.open() for _ in range(CONNECTIONS_MAX + 5)]
        await asyncio.sleep(1)
        assert [reader.ended.done() for _, reader in connections] == [True] * 5 + [False] * CONNECTIONS_MAX
        assert status(await site.ask(b"GET /hello HTTP/1.1\r\n\r\n")) == 200

    serve(story)


# a broker's own pages


def test_pages_of_a_broker() -> None:
    states = [Readiness(False, "no metadata yet"), Readiness(True, "registered with broker epoch 5")]
    counters = BrokerCounters()

    async def story(site: Site) -> None:
        async def get(path: str) -> bytes:
            return await site.ask(f"GET {path} HTTP/1.1\r\n\r\n".encode())

        assert (await get("/healthz")).endswith(b"ok\n")
        first, second = await get("/readyz"), await get("/readyz")
        assert (status(first), status(second)) == (503, 200)
        assert first.endswith(b"no metadata yet\n")
        page = await get("/metrics")
        assert b"Content-Type: text/plain; version=0.0.4" in page
        assert b"minibroker_replica_manager_under_replicated_partitions 3.0" in page

    gauges = gauges_of(under_replicated_partitions=3)
    routes = broker_routes({"broker_id": "1"}, counters, lambda: gauges, lambda: states.pop(0), lambda: 0)
    serve(story, routes)


def gauges_of(**state: int) -> BrokerGauges:
    """Of a broker that is otherwise idle."""
    return BrokerGauges(**{**dict.fromkeys(BrokerGauges.__struct_fields__, 0), **state})


def values(page: bytes) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("api", "")): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_metrics_are_read_at_each_scrape() -> None:
    counters, gauges = BrokerCounters(), [gauges_of(is_controller=0), gauges_of(is_controller=1, max_lag=7)]
    page = make_page({"broker_id": "1", "version": "0"}, counters, lambda: gauges.pop(0), with_process=False)
    before = values(page())
    counters.isr_shrinks += 2
    counters.count_request(ApiKey.PRODUCE, 1_500_000_000)
    counters.count_request(ApiKey.PRODUCE, 500_000_000)
    after = values(page())
    assert before["minibroker_controller_active_controller_count", ""] == 0
    assert after["minibroker_controller_active_controller_count", ""] == 1
    assert after["minibroker_replica_manager_max_lag", ""] == 7
    assert after["minibroker_replica_manager_isr_shrinks_total", ""] == 2
    assert after["minibroker_network_requests_total", "produce"] == 2
    assert after["minibroker_network_request_seconds_total", "produce"] == 2
    assert after["minibroker_network_requests_total", "fetch"] == 0


def test_scrapes_take_at_most_a_tenth_of_the_time() -> None:
    """A client that asked again and again kept a broker of a thousand partitions from its own work for tenths of a
    second at a time."""
    counters, now_ns = BrokerCounters(), 0

    def slow_gauges() -> BrokerGauges:
        nonlocal now_ns
        now_ns += 20_000_000
        return gauges_of()

    def truncations() -> float:
        return values(routes["/metrics"]().body)["minibroker_replica_manager_truncations_total", ""]

    routes = broker_routes({}, counters, slow_gauges, lambda: Readiness(True, ""), lambda: now_ns)
    assert truncations() == 0
    counters.truncations += 1
    for _ in range(9):
        now_ns += 19_999_999
        assert truncations() == 0
    now_ns += 20_000_000
    assert truncations() == 1


@pytest.mark.parametrize("struct", [BrokerCounters, BrokerGauges])
def test_every_metric_has_a_name_and_a_meaning(struct: type[Any]) -> None:
    fields = set(struct.__struct_fields__) - {"requests"}
    found = metrics_of(struct)
    assert set(found) == fields
    assert len({metric.name for metric in found.values()}) == len(found)
    assert all(metric.doc.endswith(".") for metric in found.values())


def test_every_counter_begins_at_zero() -> None:
    """Their growth since the start is what an alert looks at, and none may fall: Prometheus would see a restart."""
    page = make_page({"broker_id": "1", "version": "0"}, BrokerCounters(), gauges_of, with_process=False)
    counters = {name: value for name, value in values(page()).items() if name[0].endswith("_total")}
    assert len(counters) > 30
    assert set(counters.values()) == {0}


def test_prometheus_is_imported_only_where_metrics_are_served() -> None:
    code = "import sys, minibroker.broker.broker; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0
