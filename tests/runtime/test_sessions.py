"""The coordination port: sessions, outages and deadlines, on the real ZooKeeper (behind a proxy) and the simulated one.

The real ones take the seconds that a session takes; ticks are 500 ms, the subject's session 2 s.
"""

import asyncio
import errno
import logging
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
from kazoo.handlers.threading import SequentialThreadingHandler

from minibroker.local_cluster.zookeeper_process import ZooKeeperProcess
from minibroker.runtime.adapters import zookeeper as zookeeper_adapter
from minibroker.runtime.adapters.zookeeper import ZooKeeperCoordination
from minibroker.runtime.ports import CoordinationUnavailable, NodeExists, SessionEvent, SetOp, WriteOutcomeUnknown
from minibroker.simulation.world.world import SimulatedWorld
from tests.runtime.coordination import SESSION_MS, Coordinations, Fired, conformance
from tests.runtime.little_zookeeper import LittleZooKeeper
from tests.runtime.zookeeper_proxy import ZooKeeperProxy

SESSION = SESSION_MS / 1000


def loop_time() -> float:
    return asyncio.get_running_loop().time()


@conformance
async def test_start_opens_a_session(ports: Coordinations) -> None:
    await ports.until(lambda: ports.kinds == ["connected"])
    assert ports.events[0].session_id == ports.subject.session_id != 0
    assert ports.subject.session_id != ports.observer.session_id
    assert ports.subject.negotiated_timeout_ms == SESSION_MS


@conformance
async def test_deadline_is_counted_from_sending(ports: Coordinations) -> None:
    await ports.subject.exists("/")
    asked_at = loop_time()
    await ports.subject.exists("/")
    assert asked_at + SESSION - 0.002 <= ports.subject.session_deadline <= loop_time() + SESSION


@conformance
async def test_heartbeats_keep_the_deadline_ahead(ports: Coordinations) -> None:
    for _ in range(5):
        await asyncio.sleep(0.3)
        assert ports.subject.session_deadline > loop_time() + SESSION / 2


@conformance
async def test_clean_close_is_no_expiry(ports: Coordinations) -> None:
    await ports.until(lambda: ports.kinds == ["connected"])
    await ports.subject.close()
    await ports.subject.close()
    await asyncio.sleep(0.2)
    assert ports.kinds == ["connected"]
    assert ports.subject.session_deadline < loop_time()
    with pytest.raises(CoordinationUnavailable):
        await ports.subject.exists("/")


@conformance
async def test_session_survives_a_broken_connection(ports: Coordinations) -> None:
    session_id = ports.subject.session_id
    path, _ = await ports.subject.create(f"{ports.root}/me", b"", ephemeral=True)
    ports.faults.drop_connection()
    await ports.until(lambda: ports.kinds == ["connected", "suspended", "connected"])
    assert ports.subject.session_id == session_id
    assert {event.session_id for event in ports.events} == {session_id}
    assert await ports.observer.exists(path) is not None
    assert ports.subject.session_deadline > loop_time() + SESSION / 2


@conformance
async def test_calls_fail_at_once_while_there_is_no_connection(ports: Coordinations) -> None:
    path, _ = await ports.subject.create(f"{ports.root}/a", b"0")
    ports.faults.cut()
    ports.faults.drop_connection()
    await ports.until(lambda: "suspended" in ports.kinds)
    began = loop_time()
    with pytest.raises(CoordinationUnavailable):
        await ports.subject.get(path)
    with pytest.raises(CoordinationUnavailable):
        await ports.subject.set(path, b"1")
    with pytest.raises(CoordinationUnavailable):
        await ports.subject.multi([SetOp(path=path, data=b"1")])
    assert loop_time() - began < 0.1
    ports.faults.heal()
    await ports.until(lambda: ports.kinds[-1] in ("connected", "new-session"))
    assert (await ports.subject.get(path))[0] == b"0"


@conformance
async def test_write_whose_answer_is_lost_has_an_unknown_outcome(ports: Coordinations) -> None:
    path = f"{ports.root}/a"
    ports.faults.lose_next_reply()
    with pytest.raises(WriteOutcomeUnknown):
        await ports.subject.create(path, b"written all the same")
    await ports.until(lambda: ports.kinds == ["connected", "suspended", "connected"])
    assert (await ports.subject.get(path))[0] == b"written all the same"
    with pytest.raises(NodeExists):
        await ports.subject.create(path, b"")


@conformance
async def test_calls_into_silence_end_within_the_session(ports: Coordinations) -> None:
    path, _ = await ports.subject.create(f"{ports.root}/a", b"0")
    ports.faults.cut()
    began = loop_time()
    read, write = await asyncio.gather(ports.subject.get(path), ports.subject.set(path, b"1"), return_exceptions=True)
    assert isinstance(read, CoordinationUnavailable)
    assert isinstance(write, WriteOutcomeUnknown)
    assert loop_time() - began < SESSION + 0.3


@conformance
async def test_watches_outlive_an_outage(ports: Coordinations) -> None:
    """Changes may have been missed: every watch fires when the connection is back, and not before."""
    path, _ = await ports.observer.create(f"{ports.root}/a", b"0")
    fired, gone = Fired(ports), Fired(ports)
    await ports.subject.get(path, fired)
    await ports.subject.get_children(ports.root, gone)
    ports.faults.cut()
    ports.faults.drop_connection()
    await ports.until(lambda: "suspended" in ports.kinds)
    await ports.observer.set(path, b"1")
    await asyncio.sleep(0.1)
    assert fired.times == gone.times == 0
    ports.faults.heal()
    await fired.until_fired()
    await gone.until_fired()
    assert (await ports.subject.get(path))[0] == b"1"
    assert fired.times == 1


@conformance
async def test_expiry_is_seen_by_others_first_and_never_before_the_deadline(ports: Coordinations) -> None:
    """Hardening rule 8: before others may act on the end of a session, its owner knows it from its own clock."""
    path, _ = await ports.subject.create(f"{ports.root}/me", b"", ephemeral=True)
    old_session, gone, watch = ports.subject.session_id, Fired(ports), Fired(ports)
    await ports.observer.exists(path, gone)
    await ports.subject.get(ports.root, watch)
    ports.faults.cut()
    await gone.until_fired()
    assert ports.subject.session_deadline < loop_time()
    assert "expired" not in ports.kinds
    assert ports.subject.session_id == old_session
    ports.faults.heal()
    await ports.until(lambda: "new-session" in ports.kinds)
    assert ports.kinds == ["connected", "suspended", "expired", "new-session"]
    assert [event.session_id for event in ports.events[:3]] == [old_session] * 3
    assert ports.events[3].session_id == ports.subject.session_id != old_session
    assert ports.subject.session_deadline > loop_time() + SESSION / 2
    await watch.until_fired()
    assert await ports.subject.exists(path) is None
    await ports.subject.create(path, b"again", ephemeral=True)
    assert watch.times == 1


@conformance
async def test_many_outages_later_it_still_works(ports: Coordinations) -> None:
    for number in range(4):
        ports.faults.drop_connection()
        await ports.until(lambda number=number: ports.kinds.count("connected") >= number + 2)  # type: ignore[misc]
    await ports.subject.create(f"{ports.root}/a", b"")
    assert "expired" not in ports.kinds


def test_one_warning_per_outage(coordination_bench: object, caplog: pytest.LogCaptureFixture) -> None:
    async def case(ports: Coordinations) -> None:
        ports.faults.cut()
        ports.faults.drop_connection()
        await ports.until(lambda: "suspended" in ports.kinds)
        await asyncio.sleep(1)
        ports.faults.heal()
        await ports.until(lambda: ports.kinds[-1] in ("connected", "new-session"))

    with caplog.at_level(logging.INFO):
        coordination_bench.run(case)  # type: ignore[attr-defined]
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) <= 1, [record.getMessage() for record in warnings]


# --------------------------------------------------------------------------------------------- without the proxy
UNUSED_ADDRESS = "127.0.0.1:1"


async def test_start_without_a_server_names_it() -> None:
    coordination = ZooKeeperCoordination(UNUSED_ADDRESS, 300)
    with pytest.raises(CoordinationUnavailable, match=UNUSED_ADDRESS):
        await coordination.start()
    await coordination.close()


def test_simulated_start_without_a_server_names_it() -> None:
    world = SimulatedWorld()
    world.zookeeper.cut()
    coordination = world.runtime("broker").open_coordination("zookeeper:2181", 300)

    async def start() -> None:
        with pytest.raises(CoordinationUnavailable, match="zookeeper:2181"):
            await coordination.start()

    world.run(start())


ASKED_AND_GRANTED = [(10, 1_000), (3_000, 3_000), (60_000, 10_000)]


@pytest.mark.system
@pytest.mark.parametrize(("asked", "granted"), ASKED_AND_GRANTED)
async def test_granted_session_is_two_to_twenty_ticks(zookeeper: ZooKeeperProcess, asked: int, granted: int) -> None:
    coordination = ZooKeeperCoordination(zookeeper.servers, max(asked, 500))
    await coordination.start()
    assert coordination.negotiated_timeout_ms == granted
    await coordination.close()


@pytest.mark.parametrize(("asked", "granted"), ASKED_AND_GRANTED)
def test_simulated_granted_session_is_two_to_twenty_ticks(asked: int, granted: int) -> None:
    world = SimulatedWorld()
    coordination = world.runtime("broker").open_coordination("zookeeper:2181", max(asked, 500))

    async def start() -> None:
        await coordination.start()
        assert coordination.negotiated_timeout_ms == granted

    world.run(start())


@pytest.mark.system
async def test_closing_does_not_wait_for_a_silent_server(zookeeper: ZooKeeperProcess) -> None:
    proxy = ZooKeeperProxy(zookeeper.port)
    coordination = ZooKeeperCoordination(await proxy.start(), 1_000)
    await coordination.start()
    proxy.cut()
    began = loop_time()
    await coordination.close()
    assert loop_time() - began < 2
    await proxy.close()


@pytest.mark.parametrize("failures", [1, 2, 3])
async def test_a_session_begins_anew_after_look_ups_of_the_name_failed(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """A lack of file descriptors ends kazoo's thread by an OSError. kazoo does not report the end of a client that
    had no session yet: the broker would stay without ZooKeeper until it is restarted."""
    server = LittleZooKeeper()
    await server.start()
    coordination = ZooKeeperCoordination(f"localhost:{server.port}", 2_000)
    await coordination.start()
    events, is_back = [], asyncio.Event()

    def on_event(event: SessionEvent) -> None:
        events.append(event.kind)
        if event.kind == "new-session":
            is_back.set()

    coordination.add_session_listener(on_event)
    real, left = socket.getaddrinfo, [OSError(errno.EMFILE, "Too many open files")] * failures

    def lacking(host: str, *arguments: Any) -> Any:
        if left and host == "localhost":
            raise left.pop()
        return real(host, *arguments)

    monkeypatch.setattr(zookeeper_adapter, "RECONNECT_DELAY_SECONDS_MAX", 0.01)
    monkeypatch.setattr(socket, "getaddrinfo", lacking)
    server.drop_connections()
    try:
        async with asyncio.timeout(5):
            await is_back.wait()
        assert await coordination.exists("/") is None
        assert events == ["suspended", "expired", "new-session"]
    finally:
        monkeypatch.undo()
        await coordination.close()
        server.close()


class ClientWithoutThread:
    """A lack of threads has ended kazoo's, and refuses the next ones."""

    last_zxid = 0

    def start_async(self) -> None:
        raise RuntimeError("can't start new thread")

    def close(self) -> None:
        pass


async def test_a_client_is_opened_again_until_there_is_a_thread_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python reports that lack by a RuntimeError. It left the broker without ZooKeeper until it was restarted, and a
    broker that started ended as with a bug of its own."""
    opened: list[ClientWithoutThread] = []
    is_persistent = asyncio.Event()

    def open_client(*_: Any, **__: Any) -> ClientWithoutThread:
        opened.append(ClientWithoutThread())
        if len(opened) == 3:
            is_persistent.set()
        return opened[-1]

    def lacking(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(zookeeper_adapter, "RECONNECT_DELAY_SECONDS_MAX", 0.001)
    monkeypatch.setattr(zookeeper_adapter, "open_kazoo", open_client)
    coordination = ZooKeeperCoordination("localhost:1", 2_000)
    with pytest.raises(CoordinationUnavailable, match="can't start new thread"):
        await coordination.start()
    with monkeypatch.context() as machine:
        machine.setattr(threading.Thread, "start", lacking)
        coordination._on_ended(opened[0], None)
        async with asyncio.timeout(2):
            await is_persistent.wait()
    await coordination.close()


async def test_a_session_that_cannot_begin_ends_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """To stop kazoo takes a thread. A broker whose ZooKeeper did not answer ended as with a bug of its own."""

    class SilentClient(ClientWithoutThread):
        def start_async(self) -> None:
            pass

    def lacking(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(zookeeper_adapter, "open_kazoo", lambda *_, **__: SilentClient())
    with monkeypatch.context() as machine:
        machine.setattr(threading.Thread, "start", lacking)
        with pytest.raises(CoordinationUnavailable, match="no ZooKeeper answers"):
            await ZooKeeperCoordination("localhost:1", 50).start()


async def test_a_client_without_a_thread_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """kazoo opens a pipe before its thread. Each attempt left two descriptors until they ran out, too."""

    def lacking(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pipes: list[socket.socket] = []
    real = SequentialThreadingHandler.create_socket_pair

    def create(self: SequentialThreadingHandler) -> tuple[socket.socket, socket.socket]:
        pair: tuple[socket.socket, socket.socket] = real(self)
        pipes.extend(pair)
        return pair

    monkeypatch.setattr(SequentialThreadingHandler, "create_socket_pair", create)
    with monkeypatch.context() as machine:
        machine.setattr(threading.Thread, "start", lacking)
        with pytest.raises(CoordinationUnavailable, match="can't start new thread"):
            await ZooKeeperCoordination("localhost:1", 2_000).start()
    assert [each.fileno() for each in pipes] == [-1, -1]


def test_kazoo_is_not_imported_before_a_session_is_opened() -> None:
    code = (
        "import sys; from minibroker.runtime.adapters.real import real_runtime; "
        "real_runtime().open_coordination('127.0.0.1:1', 1000); assert 'kazoo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_each_server_of_the_list_is_tried_within_a_third_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """kazoo waited for a dead machine as long as a session lasts, although another server answered."""
    tried: dict[int, float] = {}

    def hang(_: Any, address: tuple[str, int], timeout: float, **options: Any) -> None:
        tried[address[1]] = timeout
        raise OSError(errno.ETIMEDOUT, "it would have waited")

    monkeypatch.setattr(SequentialThreadingHandler, "create_connection", hang)
    coordination = ZooKeeperCoordination("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", 900)
    with pytest.raises(CoordinationUnavailable):
        await coordination.start()
    assert tried == dict.fromkeys([1, 2, 3], pytest.approx(0.1))
