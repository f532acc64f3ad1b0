"""Faults of the simulated ZooKeeper beyond those that a proxy can inject in front of a real one (tests/runtime)."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from minibroker.runtime.ports import Coordination, CoordinationUnavailable, NoNode, WriteOutcomeUnknown
from minibroker.simulation.world.world import SimulatedWorld


class Clients:
    """A broker's client, and another broker's client that observes."""

    def __init__(self, seed: int = 0) -> None:
        self.world = SimulatedWorld(seed)
        self.zookeeper = self.world.zookeeper
        self.broker = self.open("broker-1")
        self.other = self.open("broker-2")
        self.kinds: list[str] = []
        self.broker.add_session_listener(lambda event: self.kinds.append(event.kind))

    def open(self, name: str) -> Coordination:
        return self.world.runtime(name).open_coordination("zookeeper:2181", 3_000)

    async def start(self) -> None:
        await self.other.start()
        await self.world.spawn("broker-1", self.broker.start())


def in_a_world(case: Callable[[Clients], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def start_first(clients: Clients) -> None:
        await clients.start()
        await case(clients)

    def test() -> None:
        clients = Clients()
        clients.world.run(start_first(clients))

    test.__name__, test.__doc__, test.__module__ = case.__name__, case.__doc__, case.__module__
    return test


@in_a_world
async def test_ephemeral_of_a_killed_process_goes_with_its_session(clients: Clients) -> None:
    await clients.broker.create("/me", b"", ephemeral=True)
    killed_at = clients.world.loop.time()
    clients.world.kill("broker-1")
    gone = asyncio.Event()
    assert await clients.other.exists("/me", gone.set) is not None
    await gone.wait()
    assert 2.4 < clients.world.loop.time() - killed_at < 3.6


@in_a_world
async def test_copy_of_the_data_has_the_nodes_and_the_sessions_of_its_time(clients: Clients) -> None:
    nodes = clients.zookeeper.tree.nodes
    await clients.broker.create("/kept", b"first")
    await clients.broker.create("/me", b"", ephemeral=True)
    copy = clients.zookeeper.copied_data()
    await clients.broker.set("/kept", b"second")
    await clients.broker.create("/later", b"")
    for name in ("broker-1", "broker-2"):
        clients.world.kill(name)
    for _ in range(2):
        clients.zookeeper.put_in(copy)
        assert (nodes["/kept"].data, "/later" in nodes, clients.zookeeper.tree.zxid) == (b"first", False, copy.zxid)
        assert "/me" in nodes, "its session gets its full time again"
        await asyncio.sleep(6)
        assert "/me" not in nodes


@in_a_world
async def test_held_write_of_a_killed_process_happens_or_is_lost(clients: Clients) -> None:
    for is_lost, path in ((False, "/first"), (True, "/second")):
        client = clients.open("broker-1")
        await clients.world.spawn("broker-1", client.start())
        hold = clients.zookeeper.hold("broker-1", lambda request: request.kind == "write")
        clients.world.spawn("broker-1", client.create(path, b""))
        await hold.caught()
        clients.world.kill("broker-1")
        (hold.drop if is_lost else hold.release)()
        await asyncio.sleep(0.1)
        assert (path in clients.zookeeper.tree.nodes) is not is_lost


@in_a_world
async def test_paused_process_loses_its_session_and_learns_it_afterwards(clients: Clients) -> None:
    await clients.broker.create("/me", b"", ephemeral=True)
    clients.world.pause("broker-1")
    await asyncio.sleep(6)
    assert await clients.other.exists("/me") is None
    assert clients.kinds == ["connected"]
    assert clients.broker.session_deadline < clients.world.loop.time()
    clients.world.resume("broker-1")
    await asyncio.sleep(1)
    assert clients.kinds == ["connected", "suspended", "expired", "new-session"]


@in_a_world
async def test_a_short_pause_keeps_the_session(clients: Clients) -> None:
    clients.world.pause("broker-1")
    await asyncio.sleep(1.5)
    clients.world.resume("broker-1")
    await asyncio.sleep(5)
    assert clients.kinds == ["connected"]


@in_a_world
async def test_an_expired_session_is_seen_by_others_before_its_owner(clients: Clients) -> None:
    await clients.broker.create("/me", b"", ephemeral=True)
    order: list[str] = []
    await clients.other.exists("/me", lambda: order.append("other"))
    clients.broker.add_session_listener(lambda event: order.append(event.kind))
    clients.zookeeper.expire_session(clients.broker.session_id)
    await asyncio.sleep(2)
    assert order == ["other", "suspended", "expired", "new-session"]


@in_a_world
async def test_restarted_server_keeps_data_and_sessions(clients: Clients) -> None:
    await clients.broker.create("/me", b"x", ephemeral=True)
    clients.zookeeper.stop()
    await asyncio.sleep(10)
    with pytest.raises(CoordinationUnavailable):
        await clients.other.exists("/me")
    clients.zookeeper.start()
    await asyncio.sleep(2.5)
    assert clients.kinds == ["connected", "suspended", "connected"]
    assert (await clients.other.get("/me"))[0] == b"x"


@in_a_world
async def test_slow_server_answers_late_but_in_order(clients: Clients) -> None:
    clients.zookeeper.options.extra_delay = 0.4
    began = clients.world.loop.time()
    await clients.broker.create("/a", b"")
    assert clients.world.loop.time() - began >= 0.8
    assert clients.kinds == ["connected"]


def test_a_write_in_flight_into_a_cut_may_happen_later() -> None:
    outcomes: set[bool] = set()

    async def case(clients: Clients) -> None:
        await clients.start()
        clients.zookeeper.cut("broker-1")
        with pytest.raises(WriteOutcomeUnknown):
            await clients.broker.create("/a", b"")
        assert await clients.other.exists("/a") is None
        clients.zookeeper.heal("broker-1")
        await asyncio.sleep(1)
        outcomes.add(await clients.other.exists("/a") is not None)

    for seed in range(20):
        clients = Clients(seed)
        clients.world.run(case(clients))
    assert outcomes == {True, False}


@in_a_world
async def test_a_cut_shorter_than_the_silence_limit_only_delays(clients: Clients) -> None:
    clients.zookeeper.cut("broker-1")
    clients.world.loop.call_later(1, clients.zookeeper.heal)
    began = clients.world.loop.time()
    await clients.broker.create("/a", b"")
    assert clients.world.loop.time() - began >= 1
    assert clients.kinds == ["connected"]


@in_a_world
async def test_failed_writes_change_nothing_but_the_transaction_id(clients: Clients) -> None:
    with pytest.raises(NoNode):
        await clients.broker.set("/missing", b"")
    assert sorted(clients.zookeeper.tree.nodes) == ["/", "/zookeeper"]


@in_a_world
async def test_two_clients_of_one_machine_are_cut_together(clients: Clients) -> None:
    second = clients.open("broker-1")
    await second.start()
    clients.zookeeper.cut("broker-1")
    for client in (clients.broker, second):
        with pytest.raises(CoordinationUnavailable):
            await client.exists("/")
    assert await clients.other.exists("/") is not None


@in_a_world
async def test_one_machine_may_have_a_slow_link_to_the_server(clients: Clients) -> None:
    clients.zookeeper.slow_hosts["broker-1"] = 0.2
    began = clients.world.loop.time()
    await clients.other.create("/fast", b"")
    assert clients.world.loop.time() - began < 0.2
    await clients.broker.create("/slow", b"")
    assert clients.world.loop.time() - began > 0.4


@in_a_world
async def test_a_lost_request_leaves_the_outcome_open_and_changes_nothing(clients: Clients) -> None:
    clients.zookeeper.lose_next_request("broker-1")
    with pytest.raises(WriteOutcomeUnknown):
        await clients.broker.create("/node", b"")
    assert await clients.other.exists("/node") is None


@in_a_world
async def test_a_lost_reply_leaves_the_outcome_open_after_the_write(clients: Clients) -> None:
    clients.zookeeper.lose_next_reply("broker-1")
    with pytest.raises(WriteOutcomeUnknown):
        await clients.broker.create("/node", b"")
    assert await clients.other.exists("/node") is not None


@in_a_world
async def test_a_client_without_answers_passes_its_deadline_while_its_session_lives(clients: Clients) -> None:
    await clients.broker.create("/me", b"", ephemeral=True)
    clients.zookeeper.cut_answers("broker-1")
    for _ in range(20):
        await asyncio.sleep(0.5)
        assert await clients.other.exists("/me") is not None
    assert clients.broker.session_deadline < clients.world.loop.time()
    clients.zookeeper.heal("broker-1")
    await asyncio.sleep(3)
    assert clients.kinds == ["connected", "suspended", "connected"]


@in_a_world
async def test_a_hold_keeps_a_write_and_what_follows_it_until_it_is_released(clients: Clients) -> None:
    hold = clients.zookeeper.hold("broker-1", lambda request: request.kind == "write", times=1)
    first = asyncio.create_task(clients.broker.create("/first", b""))
    second = asyncio.create_task(clients.broker.exists("/first"))
    held = await hold.caught()
    assert held.operations[0].path == "/first"
    await asyncio.sleep(0.5)
    assert await clients.other.exists("/first") is None
    assert not second.done()
    hold.release()
    await first
    assert await second is not None


@in_a_world
async def test_a_client_held_for_too_long_gives_up_and_its_write_never_happens(clients: Clients) -> None:
    hold = clients.zookeeper.hold("broker-1", lambda request: request.kind == "write")
    with pytest.raises(WriteOutcomeUnknown):
        await clients.broker.create("/late", b"")
    await asyncio.sleep(2)
    hold.release()
    await asyncio.sleep(2)
    assert await clients.other.exists("/late") is None
