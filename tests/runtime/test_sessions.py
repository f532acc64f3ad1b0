"""The coordination door: sessions, outages and deadlines, on the real ZooKeeper (behind a proxy) and the simulated one.

The real ones take the seconds that a session takes; ticks are 500 ms, the subject's session 2 s.
"""

import asyncio
import logging
import subprocess
import sys

import pytest

from minibroker.runtime.ports import CoordinationUnavailable, NodeExists, OutcomeUnknown, SetOp
from minibroker.runtime.zookeeper import ZooKeeperCoordination
from minibroker.simulation.world import SimulatedWorld
from minibroker.zookeeper_process import ZooKeeperProcess
from tests.runtime.coordination import SESSION_MS, Coordinations, Fired, conformance
from tests.runtime.zookeeper_proxy import ZooKeeperProxy

SESSION = SESSION_MS / 1000


def loop_time() -> float:
    return asyncio.get_running_loop().time()


@conformance
async def test_start_opens_a_session(doors: Coordinations) -> None:
    await doors.until(lambda: doors.kinds == ["connected"])
    assert doors.events[0].session_id == doors.subject.session_id != 0
    assert doors.subject.session_id != doors.observer.session_id
    assert doors.subject.negotiated_timeout_ms == SESSION_MS


@conformance
async def test_deadline_is_counted_from_sending(doors: Coordinations) -> None:
    await doors.subject.exists("/")
    asked_at = loop_time()
    await doors.subject.exists("/")
    assert asked_at + SESSION - 0.002 <= doors.subject.session_deadline <= loop_time() + SESSION


@conformance
async def test_heartbeats_keep_the_deadline_ahead(doors: Coordinations) -> None:
    for _ in range(5):
        await asyncio.sleep(0.3)
        assert doors.subject.session_deadline > loop_time() + SESSION / 2


@conformance
async def test_clean_close_is_no_expiry(doors: Coordinations) -> None:
    await doors.until(lambda: doors.kinds == ["connected"])
    await doors.subject.close()
    await doors.subject.close()
    await asyncio.sleep(0.2)
    assert doors.kinds == ["connected"]
    assert doors.subject.session_deadline < loop_time()
    with pytest.raises(CoordinationUnavailable):
        await doors.subject.exists("/")


@conformance
async def test_session_survives_a_broken_connection(doors: Coordinations) -> None:
    session_id = doors.subject.session_id
    path, _ = await doors.subject.create(f"{doors.root}/me", b"", ephemeral=True)
    doors.faults.drop_connection()
    await doors.until(lambda: doors.kinds == ["connected", "suspended", "connected"])
    assert doors.subject.session_id == session_id
    assert {event.session_id for event in doors.events} == {session_id}
    assert await doors.observer.exists(path) is not None
    assert doors.subject.session_deadline > loop_time() + SESSION / 2


@conformance
async def test_calls_fail_at_once_while_there_is_no_connection(doors: Coordinations) -> None:
    path, _ = await doors.subject.create(f"{doors.root}/a", b"0")
    doors.faults.cut()
    doors.faults.drop_connection()
    await doors.until(lambda: "suspended" in doors.kinds)
    began = loop_time()
    with pytest.raises(CoordinationUnavailable):
        await doors.subject.get(path)
    with pytest.raises(CoordinationUnavailable):
        await doors.subject.set(path, b"1")
    with pytest.raises(CoordinationUnavailable):
        await doors.subject.multi([SetOp(path=path, data=b"1")])
    assert loop_time() - began < 0.1
    doors.faults.heal()
    await doors.until(lambda: doors.kinds[-1] in ("connected", "new-session"))
    assert (await doors.subject.get(path))[0] == b"0"


@conformance
async def test_write_whose_answer_is_lost_has_an_unknown_outcome(doors: Coordinations) -> None:
    path = f"{doors.root}/a"
    doors.faults.lose_next_reply()
    with pytest.raises(OutcomeUnknown):
        await doors.subject.create(path, b"written all the same")
    await doors.until(lambda: doors.kinds == ["connected", "suspended", "connected"])
    assert (await doors.subject.get(path))[0] == b"written all the same"
    with pytest.raises(NodeExists):
        await doors.subject.create(path, b"")


@conformance
async def test_calls_into_silence_end_within_the_session(doors: Coordinations) -> None:
    path, _ = await doors.subject.create(f"{doors.root}/a", b"0")
    doors.faults.cut()
    began = loop_time()
    read, write = await asyncio.gather(doors.subject.get(path), doors.subject.set(path, b"1"), return_exceptions=True)
    assert isinstance(read, CoordinationUnavailable)
    assert isinstance(write, OutcomeUnknown)
    assert loop_time() - began < SESSION + 0.3


@conformance
async def test_watches_outlive_an_outage(doors: Coordinations) -> None:
    """What changed unseen must be read again: every watch fires when the connection is back, and not before."""
    path, _ = await doors.observer.create(f"{doors.root}/a", b"0")
    fired, gone = Fired(doors), Fired(doors)
    await doors.subject.get(path, fired)
    await doors.subject.get_children(doors.root, gone)
    doors.faults.cut()
    doors.faults.drop_connection()
    await doors.until(lambda: "suspended" in doors.kinds)
    await doors.observer.set(path, b"1")
    await asyncio.sleep(0.1)
    assert fired.times == gone.times == 0
    doors.faults.heal()
    await fired.until_fired()
    await gone.until_fired()
    assert (await doors.subject.get(path))[0] == b"1"
    assert fired.times == 1


@conformance
async def test_expiry_is_seen_by_others_first_and_never_before_the_deadline(doors: Coordinations) -> None:
    """The rule of hardening rule 8: once others may act on our absence we have known it from our own clock."""
    path, _ = await doors.subject.create(f"{doors.root}/me", b"", ephemeral=True)
    old_session, gone, watch = doors.subject.session_id, Fired(doors), Fired(doors)
    await doors.observer.exists(path, gone)
    await doors.subject.get(doors.root, watch)
    doors.faults.cut()
    await gone.until_fired()
    assert doors.subject.session_deadline < loop_time()
    assert "expired" not in doors.kinds
    assert doors.subject.session_id == old_session
    doors.faults.heal()
    await doors.until(lambda: "new-session" in doors.kinds)
    assert doors.kinds == ["connected", "suspended", "expired", "new-session"]
    assert [event.session_id for event in doors.events[:3]] == [old_session] * 3
    assert doors.events[3].session_id == doors.subject.session_id != old_session
    assert doors.subject.session_deadline > loop_time() + SESSION / 2
    await watch.until_fired()
    assert await doors.subject.exists(path) is None
    await doors.subject.create(path, b"again", ephemeral=True)
    assert watch.times == 1


@conformance
async def test_many_outages_later_it_still_works(doors: Coordinations) -> None:
    for number in range(4):
        doors.faults.drop_connection()
        await doors.until(lambda number=number: doors.kinds.count("connected") >= number + 2)  # type: ignore[misc]
    await doors.subject.create(f"{doors.root}/a", b"")
    assert "expired" not in doors.kinds


def test_one_warning_per_outage(coordination_bench: object, caplog: pytest.LogCaptureFixture) -> None:
    async def case(doors: Coordinations) -> None:
        doors.faults.cut()
        doors.faults.drop_connection()
        await doors.until(lambda: "suspended" in doors.kinds)
        await asyncio.sleep(1)
        doors.faults.heal()
        await doors.until(lambda: doors.kinds[-1] in ("connected", "new-session"))

    with caplog.at_level(logging.INFO):
        coordination_bench.run(case)  # type: ignore[attr-defined]
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) <= 1, [record.getMessage() for record in warnings]


# --------------------------------------------------------------------------------------------- without the proxy
NOBODY = "127.0.0.1:1"


async def test_start_without_a_server_names_it() -> None:
    coordination = ZooKeeperCoordination(NOBODY, 300)
    with pytest.raises(CoordinationUnavailable, match=NOBODY):
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


def test_kazoo_is_not_imported_before_a_session_is_opened() -> None:
    code = (
        "import sys; from minibroker.runtime.real import real_runtime; "
        "real_runtime().open_coordination('127.0.0.1:1', 1000); assert 'kazoo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
