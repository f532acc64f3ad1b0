"""Simulated clusters for users' tests: plain clients reach them, each fault can be undone, a seed repeats a run."""

from __future__ import annotations

import asyncio
import inspect
import math
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from minibroker import Consumer, Producer, RecordMetadata
from minibroker.audit.checks.findings import Kind
from minibroker.client import default_runtime
from minibroker.harness.simulated import ClusterInUse, SimulatedHarness
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.world.real_waiting import RealWaiting
from minibroker.testing import Acknowledged, ClusterHarness, NeedsVirtualTime, cluster, run, simulated

Acked = list[tuple[RecordMetadata, bytes]]


async def order_service(servers: str, orders: int) -> Acked:
    """A user's service: it knows nothing of simulations, and writes one order per second."""
    acked: Acked = []
    async with Producer(bootstrap_servers=servers, acks="all") as producer:
        for number in range(orders):
            value = b"order %d" % number
            acked.append((await producer.send_and_wait("orders", value, partition=0), value))
            await asyncio.sleep(1)
    return acked


async def read(servers: str, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        async with asyncio.timeout(60):
            async for record in consumer:
                values.append(record.value)
                if len(values) == count:
                    break
    return values


@simulated(brokers=3, seed=7)
async def test_a_service_survives_the_failure_of_a_leader(c: ClusterHarness) -> None:
    await c.create_topic("orders")
    service = asyncio.create_task(order_service(c.bootstrap_servers, 20))
    await asyncio.sleep(5)
    assert await c.controller() in c.broker_ids
    dead = await c.kill_leader("orders", 0)
    assert await c.wait_for_leader("orders", other_than=dead) != dead
    acked = await service
    assert await read(c.bootstrap_servers, 20) == [value for _, value in acked]
    await c.restart(dead)
    await c.wait_in_sync("orders")
    assert await c.in_sync_replicas("orders") == (1, 2, 3)
    assert (await c.audit(acked)).success


async def pause_a_follower(c: ClusterHarness) -> None:
    await c.pause(follower(await c.leader("orders")))
    await asyncio.sleep(15)
    assert len(await c.in_sync_replicas("orders")) == 2
    await c.resume(follower(await c.leader("orders")))


async def cut_power(c: ClusterHarness) -> None:
    leader = await c.wait_for_leader("orders")
    await c.power_loss(leader)
    await asyncio.sleep(10)
    await c.start(leader)


async def isolate_the_leader(c: ClusterHarness) -> None:
    leader = await c.wait_for_leader("orders")
    await c.isolate(leader, zookeeper=True)
    await c.wait_for_leader("orders", other_than=leader)
    await c.heal()


async def lose_a_follower_in_the_network(c: ClusterHarness) -> None:
    needed = {await c.leader("orders"), await c.controller()}
    other = next(broker for broker in c.broker_ids if broker not in needed)
    await c.partition(other, [broker for broker in c.broker_ids if broker != other])
    await asyncio.sleep(20)
    assert other not in await c.in_sync_replicas("orders")
    await c.heal()


async def stop_zookeeper(c: ClusterHarness) -> None:
    await c.stop_zookeeper()
    await asyncio.sleep(10)
    await c.start_zookeeper()


async def roll(c: ClusterHarness) -> None:
    for broker_id in c.broker_ids:
        await c.restart(broker_id)
        await c.wait_in_sync()


def follower(leader: int | None) -> int:
    assert leader is not None
    return leader % 3 + 1


@pytest.mark.parametrize(
    "fault",
    [pause_a_follower, cut_power, isolate_the_leader, lose_a_follower_in_the_network, stop_zookeeper, roll],
)
def test_no_acknowledged_record_is_lost_after_a_fault(fault: Callable[[ClusterHarness], Awaitable[None]]) -> None:
    async def story() -> None:
        async with cluster(brokers=3, seed=1) as c:
            await c.create_topic("orders")
            service = asyncio.create_task(order_service(c.bootstrap_servers, 30))
            await asyncio.sleep(3)
            await fault(c)
            acked = await service
            await c.wait_in_sync()
            assert (await c.audit(acked)).success
            assert await read(c.bootstrap_servers, 30) == [value for _, value in acked]

    run(story())


def test_a_seed_repeats_a_run_and_another_seed_does_not() -> None:
    async def story(seed: int) -> str:
        async with cluster(brokers=3, seed=seed) as c:
            assert isinstance(c, SimulatedHarness)
            await c.create_topic("orders")
            await order_service(c.bootstrap_servers, 5)
            return c.trace_hash

    first = run(story(5))
    assert run(story(5)) == first
    assert run(story(6)) != first


def test_a_virtual_hour_takes_less_than_a_minute() -> None:
    async def story() -> float:
        async with cluster(brokers=1):
            began = asyncio.get_running_loop().time()
            await asyncio.sleep(3600)
            return asyncio.get_running_loop().time() - began

    started = time.monotonic()
    assert run(story(), virtual_seconds_max=4000) == pytest.approx(3600)
    assert time.monotonic() - started < 60


@simulated(seed=3)
async def test_the_audit_finds_a_missing_record(c: ClusterHarness) -> None:
    await c.create_topic("orders")
    acked = await order_service(c.bootstrap_servers, 3)
    missing = (RecordMetadata("orders", 0, 1_000, 0, 0), b"never written")
    report = await c.audit([*acked, missing])
    assert not report.success
    assert {finding.kind for finding in report.findings} == {Kind.ACKED_MISSING}


@simulated(seed=3)
async def test_the_audit_compares_whole_records(c: ClusterHarness) -> None:
    await c.create_topic("orders")
    async with c.producer() as producer:
        metadata = await producer.send_and_wait("orders", b"value", key=b"key", headers=[("name", b"1")])
    assert (await c.audit([Acknowledged(metadata, b"value", b"key", [("name", b"1")])])).success
    report = await c.audit([Acknowledged(metadata, b"value", b"other", [("name", b"1")])])
    assert {finding.kind for finding in report.findings} == {Kind.ACKED_CHANGED}


@simulated(seed=3)
async def test_the_audit_skips_a_record_without_a_known_offset(c: ClusterHarness) -> None:
    await c.create_topic("orders")
    acked = await order_service(c.bootstrap_servers, 1)
    unknown = (RecordMetadata("orders", 0, None, None, 0), b"somewhere")
    assert (await c.audit([*acked, unknown])).success


async def test_an_ordinary_loop_is_refused_with_the_cure() -> None:
    with pytest.raises(NeedsVirtualTime, match="mark the test with"):
        async with cluster():
            pass


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"brokers": 1_000_000}, "brokers must be 1 to 100"),  # a start without end
        ({"brokers": 0}, "1 to 100"),
        ({"brokers": "3"}, "1 to 100, not '3'"),
        ({"settings": {"min.insync.replica": "1"}}, "Did you mean min.insync.replicas"),
        ({"settings": {"min.insync.replicas": 1}}, "settings are texts"),
        ({"backend": "cloud"}, "simulated, processes or compose"),
    ],
)
def test_options_that_no_cluster_has_are_refused_before_it_starts(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        cluster(**options)


def test_a_failure_prints_the_seed_and_the_state_of_the_cluster() -> None:
    async def story() -> None:
        async with cluster(brokers=2, seed=11) as c:
            await c.create_topic("orders")
            await c.kill(2)
            raise ValueError("the service is wrong")

    with pytest.raises(ValueError, match="service") as failure:
        run(story())
    notes = "\n".join(failure.value.__notes__)
    assert "seed 11, trace hash " in notes
    assert "brokers 1 running, 2 down" in notes
    assert "orders-0 leader " in notes


def test_a_test_that_hangs_times_out_where_it_waits() -> None:
    async def story() -> None:
        async with cluster(brokers=1):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match="not done after 30 virtual seconds"):
        run(story(), virtual_seconds_max=30)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("limit", [math.nan, math.inf, 0.0, -1.0])
def test_a_limit_that_ends_no_wait_is_refused(limit: float) -> None:
    async def story() -> None:
        async with cluster(brokers=1):
            await asyncio.Event().wait()

    with pytest.raises(ValueError, match="virtual_seconds_max must be a number of seconds above 0"):
        run(story(), virtual_seconds_max=limit)


@simulated(brokers=1)
async def test_a_wait_that_times_out_names_what_did_not_happen(c: ClusterHarness) -> None:
    await c.create_topic("orders")
    with pytest.raises(AssertionError, match="after 5 s: orders-0 is still led by 1"):
        await c.wait_for_leader("orders", other_than=1, timeout_s=5)
    await c.kill(1)
    with pytest.raises(AssertionError, match="after 5 s: orders-0 has no leader"):
        await c.wait_for_leader("orders", timeout_s=5)


@simulated(brokers=1)
async def test_a_wait_for_the_leader_of_what_does_not_exist_says_so(c: ClusterHarness) -> None:
    with pytest.raises(AssertionError, match=r"there is no topic 'orders': `await c\.create_topic\(\"orders\"\)`"):
        await c.wait_for_leader("orders", timeout_s=5)
    await c.create_topic("orders", partitions=2)
    with pytest.raises(AssertionError, match=r"there is no orders-2: the topic has partitions \[0, 1\]"):
        await c.wait_for_leader("orders", 2, timeout_s=5)


@simulated(brokers=1)
async def test_real_waiting_is_refused(c: ClusterHarness) -> None:
    with pytest.raises(RealWaiting, match="a real sleep"):
        time.sleep(1)  # noqa: ASYNC251
    with pytest.raises(RealWaiting, match="a thread"):
        await asyncio.to_thread(print)
    with pytest.raises(RealWaiting, match="a blocking connection"):
        socket.create_connection(("127.0.0.1", 1))
    host, port = c.bootstrap_servers.split(",")[0].split(":")
    with pytest.raises(RealWaiting, match=r"a blocking connection to .*asyncio\.open_connection"):
        socket.create_connection((host, int(port)))
    with pytest.raises(RealWaiting, match="a datagram socket, which is not simulated: test it with backend="):
        await asyncio.get_running_loop().create_datagram_endpoint(asyncio.DatagramProtocol, ("127.0.0.1", 0))
    with pytest.raises(RealWaiting, match="another program"):
        await asyncio.create_subprocess_exec("true")


def test_a_task_that_exits_ends_the_program() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def main() -> None:
        async with cluster(brokers=1):
            leaving = asyncio.create_task(leave())
            await asyncio.wait([leaving])

    with pytest.raises(SystemExit, match="3"):
        run(main())


def test_threads_that_ran_before_may_sleep_and_start_threads() -> None:
    may_go_on, outcome = threading.Event(), list[str]()

    def in_background() -> None:
        may_go_on.wait()
        time.sleep(0)
        inner = threading.Thread(target=lambda: outcome.append("ran"))
        inner.start()
        inner.join()

    before = threading.Thread(target=in_background)
    before.start()

    @simulated(brokers=1)
    async def story(c: ClusterHarness) -> None:
        may_go_on.set()
        before.join()

    story()
    assert outcome == ["ran"]


@simulated(brokers=1)
async def test_two_clusters_at_a_time_are_refused(c: ClusterHarness) -> None:
    with pytest.raises(ClusterInUse, match="one simulated cluster at a time"):
        async with cluster(brokers=1):
            pass


def test_clients_get_their_usual_runtime_back() -> None:
    before = default_runtime.open_default

    @simulated(brokers=1)
    async def story(c: ClusterHarness) -> None:
        assert default_runtime.open_default is not before

    story()
    assert default_runtime.open_default is before


def test_the_decorated_function_keeps_its_other_arguments() -> None:
    class Suite:
        @simulated(brokers=1)
        async def method(self, c: ClusterHarness, fixture: int) -> Any:
            return self, c.broker_ids, fixture

    suite = Suite()
    assert list(inspect.signature(suite.method).parameters) == ["fixture"]
    assert suite.method(fixture=3) == (suite, (1,), 3)


# --------------------------------------------------------------------------------------------------- a whole service
async def wait_for_death(c: ClusterHarness, error: Exception) -> None:
    async def dies() -> None:
        await asyncio.sleep(1)
        raise error

    async with c.running(dies()):
        await asyncio.sleep(100)


@simulated(brokers=1)
async def test_a_running_service_ends_with_its_block(c: ClusterHarness) -> None:
    async with c.running(asyncio.Event().wait()) as service:
        await asyncio.sleep(1)
        assert not service.done()
    assert service.cancelled()
    async with c.running(asyncio.sleep(1, "done")) as service:
        assert await service == "done"


@simulated(brokers=1)
async def test_a_service_that_dies_ends_its_block_with_its_error(c: ClusterHarness) -> None:
    began = asyncio.get_running_loop().time()
    with pytest.raises(ZeroDivisionError, match="of the service"):
        await wait_for_death(c, ZeroDivisionError("of the service"))
    assert asyncio.get_running_loop().time() - began < 2
    await asyncio.sleep(1)  # this task is not cancelled


@simulated(brokers=1)
async def test_the_blocks_own_error_is_raised_and_ends_the_service(c: ClusterHarness) -> None:
    with pytest.raises(ValueError, match="of the block"):
        async with c.running(asyncio.Event().wait()) as service:
            raise ValueError("of the block")
    assert service.cancelled()


@simulated(brokers=1)
async def test_a_signal_reaches_the_services_handler(c: ClusterHarness) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, stop.set)
    signal.raise_signal(signal.SIGUSR1)
    await stop.wait()
    assert loop.remove_signal_handler(signal.SIGUSR1)
    assert not loop.remove_signal_handler(signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


async def order_server(servers: str, port: int) -> None:
    """A user's service: takes a line, writes it to the log, answers with the offset."""
    async with Producer(bootstrap_servers=servers) as producer:

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                written = await producer.send_and_wait("orders", line.rstrip())
                writer.write(b"%d\n" % (written.offset or 0))
                await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", port) as server:
            await server.serve_forever()


@simulated(brokers=3, seed=5)
async def test_a_services_own_connections_use_the_simulated_network(c: ClusterHarness) -> None:
    await c.create_topic("orders")
    async with c.running(order_server(c.bootstrap_servers, 8080)):
        await asyncio.sleep(1)
        reader, writer = await asyncio.open_connection("localhost", 8080)
        answers = []
        for number in range(3):
            writer.write(b"order %d\n" % number)
            answers.append(await reader.readline())
            if number == 0:
                await c.kill_leader("orders")
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    assert answers == [b"0\n", b"1\n", b"2\n"]
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("localhost", 8080)


@simulated(brokers=1)
async def test_a_client_that_resolves_names_and_makes_sockets_itself_is_connected(c: ClusterHarness) -> None:
    """As aiohttp does."""
    loop, accepted = asyncio.get_running_loop(), list[str]()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append("one")

    server = await asyncio.start_server(accept, "127.0.0.1", 8080)
    ((family, kind, protocol, _, address),) = await loop.getaddrinfo("localhost", 8080, type=socket.SOCK_STREAM)
    assert address == ("127.0.0.1", 8080)
    ends = [socket.socket(family, kind, protocol) for _ in range(2)]
    for end in ends:
        end.setblocking(False)
        await loop.sock_connect(end, address)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ends[0])
    await asyncio.sleep(1)
    assert accepted == ["one"]
    transport.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        await loop.create_connection(asyncio.Protocol, sock=ends[1])
    with pytest.raises(RealWaiting, match=r"the address of 'db\.example'"):
        await loop.getaddrinfo("db.example", 5432)
    with pytest.raises(RealWaiting, match="a socket of its own"):
        await loop.create_connection(asyncio.Protocol, sock=socket.socket())


@simulated(brokers=1)
async def test_a_server_tells_its_port_and_keeps_it_to_itself(c: ClusterHarness) -> None:
    def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

    server = await asyncio.start_server(ignore, port=0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(OSError, match="in use"):
        await asyncio.start_server(ignore, "0.0.0.0", port)
    server.close()
    await server.wait_closed()
    assert not server.is_serving() and server.sockets == ()
    with pytest.raises(OSError, match="unknown host"):
        await asyncio.open_connection("db.example", 5432)
    with pytest.raises(OverflowError, match="0-65535"):
        await asyncio.start_server(ignore, "0.0.0.0", 70_000)
    with pytest.raises(OverflowError, match="0-65535"):
        await asyncio.open_connection("localhost", -5)
    with pytest.raises(RealWaiting, match="TLS"):
        await asyncio.open_connection("localhost", port, ssl=True)


@simulated(brokers=1)
async def test_a_slow_reader_holds_a_writer_up(c: ClusterHarness) -> None:
    taken = asyncio.Event()

    async def read_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await taken.wait()
        writer.write(b"%d" % len(await reader.read()))
        writer.close()

    async with await asyncio.start_server(read_late, "127.0.0.1", 8080):
        reader, writer = await asyncio.open_connection("127.0.0.1", 8080)
        data = bytearray(2_000_000)
        writer.write(data)
        data[:] = b"x" * len(data)  # as asyncio allows
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 5)
        taken.set()
        await writer.drain()
        writer.write_eof()
        assert await reader.read() == b"2000000"
        writer.close()
