"""How a follower dials its leader: at which address, how long it waits for the connection, and when it tries again."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.replicas import replica_fetcher
from minibroker.broker.replicas.replica_fetcher import (
    CONNECT_TIMEOUT_MS,
    RECONNECT_MS,
    REDIAL_PAUSES_MS,
    REDIAL_TIMEOUT_MS,
    Redial,
    ReplicaFetcher,
)
from minibroker.broker.replication.events import AskEpochEnd
from minibroker.broker.replication.state import AskingEpochEnd, AskingLeaderEnds, FollowerPhase
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import FetchRequest
from minibroker.runtime.observer import UNOBSERVED
from minibroker.runtime.ports import ConnectionRefused, NetworkError
from minibroker.runtime.rpc import ConnectionClosed
from minibroker.simulation.world.world import SimulatedWorld
from tests.broker.test_replica_fetcher import Wire, _fetcher, _follower

REGISTERED = ("broker-1", 9092)
LOST = ("10.0.0.1", 9092)
REDIAL = Redial(address=LOST, registration=20_000, lost_at=0.0)


class Dialled:
    """A leader that may refuse; what it is dialled with, and what is told of its refusals."""

    def __init__(self, error: NetworkError | None = None) -> None:
        self.dials: list[tuple[object, ...]] = []
        self.refusals: list[tuple[int, int | None]] = []
        self.connection = SimpleNamespace(on_closed=None, closed=True)
        self.registration = 20_000
        self._error = error

    async def connect(self, broker_id: int, address: tuple[str, int], *, client_id: str, timeout_ms: int) -> object:
        self.dials.append((broker_id, address, client_id, timeout_ms))
        if self._error is not None:
            raise self._error
        return self.connection

    def fetcher(self, address: tuple[str, int] | None = REGISTERED) -> ReplicaFetcher:
        return ReplicaFetcher(
            dialer=cast(Any, self),
            leader_id=1,
            address=lambda _: address,
            leader_registration=lambda _: int(str(self.registration)),  # equal, and each time another object
            on_refused=lambda leader_id, registration: self.refusals.append((leader_id, registration)),
            broker_epoch=lambda: 7,
            config=cast(Any, SimpleNamespace(broker_id=2)),
            observer=UNOBSERVED,
        )


@pytest.mark.parametrize(
    ("redial", "address", "timeout_ms"), [(None, REGISTERED, CONNECT_TIMEOUT_MS), (REDIAL, LOST, REDIAL_TIMEOUT_MS)]
)
async def test_an_address_is_waited_for_shortly_if_it_was_lost_a_moment_ago(
    redial: Redial | None, address: tuple[str, int], timeout_ms: int
) -> None:
    """Its host may be gone with it."""
    leader = Dialled()
    fetcher = leader.fetcher()
    await fetcher._open(redial)
    assert leader.dials == [(1, address, "broker-2-fetcher", timeout_ms)]
    assert fetcher._connection is cast(Any, leader.connection)
    assert not fetcher._lost.is_set()
    cast(Any, leader.connection).on_closed()
    assert fetcher._lost.is_set()


@pytest.mark.parametrize("redial", [None, REDIAL])
@pytest.mark.parametrize(("error", "told"), [(ConnectionRefused("no"), [(1, 20_000)]), (NetworkError("no"), [])])
async def test_only_a_refusal_is_remembered(error: NetworkError, told: list[object], redial: Redial | None) -> None:
    """It is evidence that the leader has failed; silence is none."""
    leader = Dialled(error)
    with pytest.raises(type(error)):
        await leader.fetcher()._open(redial)
    assert leader.refusals == told


async def test_a_leader_that_is_not_registered_is_not_dialled() -> None:
    leader = Dialled()
    with pytest.raises(NetworkError, match="broker 1 is not registered"):
        await leader.fetcher(address=None)._open(None)
    assert leader.dials == []


async def _ended(
    fetcher: ReplicaFetcher, monkeypatch: pytest.MonkeyPatch, was_lost: bool, redial: Redial | None
) -> Redial | None:
    """What is dialled next when the connection to ("10.0.0.1", 9092) ends at once."""
    await fetcher._open(None)

    async def watch() -> bool:
        return was_lost

    monkeypatch.setattr(fetcher, "_watch", watch)
    monkeypatch.setattr(fetcher, "_close", lambda: ("10.0.0.1", 9092))
    return await fetcher._use(redial)


async def test_a_lost_connection_that_was_steady_is_dialled_again_at_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One reset must not cost a pause: the leader may run, and the follower must not leave the ISR."""
    monkeypatch.setattr(replica_fetcher, "STEADY_SECONDS", 0.0)
    redial = await _ended(Dialled().fetcher(), monkeypatch, was_lost=True, redial=None)
    assert redial is not None
    assert (redial.address, redial.registration, redial.attempt) == (("10.0.0.1", 9092), 20_000, 0)
    assert await _ended(Dialled().fetcher(), monkeypatch, was_lost=False, redial=None) is None


async def test_an_address_belongs_to_the_registration_under_which_it_was_dialled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader registers elsewhere while it is dialled. Its former address refuses, and that was taken for evidence
    that the new registration has failed."""
    monkeypatch.setattr(replica_fetcher, "STEADY_SECONDS", 0.0)
    leader = Dialled()
    connect = leader.connect

    async def connect_while_it_registers(*asked: Any, **options: Any) -> object:
        leader.registration += 1
        return await connect(*asked, **options)

    monkeypatch.setattr(leader, "connect", connect_while_it_registers)
    redial = await _ended(leader.fetcher(), monkeypatch, was_lost=True, redial=None)
    assert redial is not None
    assert (redial.registration, leader.registration) == (20_000, 20_001)


@pytest.mark.parametrize("address", [REGISTERED, ("broker-1-anew", 9092), None])
def test_a_leader_that_is_registered_elsewhere_is_dialled_there(address: tuple[str, int] | None) -> None:
    """Its former process may run on, cut from ZooKeeper, and answer that it leads nothing. No follower came to the new
    one as long as the old connection lasted."""
    leader, registered, given_up = Dialled(), {1: REGISTERED}, list[object]()
    leader.connection = SimpleNamespace(
        on_closed=None, closed=False, is_waited_on=True, remote_address=LOST, send=lambda *_: 0
    )
    leader.connection.abort = lambda: given_up.append(registered[1])

    async def check() -> None:
        fetcher = leader.fetcher()
        fetcher._address = lambda broker_id: cast(Any, registered[broker_id])
        fetcher._config = cast(Any, SimpleNamespace(broker_id=2, socket_timeout_ms=30_000, max_wait_ms=500))
        fetcher.partitions[TopicPartition("a", 0)] = _follower(flushes=False, synced_end=0)
        fetcher.partitions[TopicPartition("a", 0)].state.phase = AskingEpochEnd(0)
        fetcher._work.set()
        running = asyncio.ensure_future(fetcher.run())
        await asyncio.sleep(1)
        fetcher._waits_since = asyncio.get_running_loop().time() + 60  # it answers
        registered[1] = cast(Any, address)
        await asyncio.sleep(40)
        assert given_up == elsewhere, "a leader that is unregistered for a while is still followed"
        running.cancel()

    elsewhere = [address] if address not in (None, REGISTERED) else []
    SimulatedWorld().run(check())
    assert [each[1] for each in leader.dials] == [REGISTERED, *elsewhere]


async def test_a_connection_that_is_lost_at_once_is_dialled_again_a_few_times_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost_at = asyncio.get_running_loop().time()
    redial: Redial | None = Redial(address=("10.0.0.1", 9092), registration=20_000, lost_at=lost_at)
    attempts = []
    while redial is not None:
        attempts.append(redial.attempt)
        redial = await _ended(Dialled().fetcher(), monkeypatch, was_lost=True, redial=redial)
    assert attempts == list(range(len(REDIAL_PAUSES_MS)))
    late = Redial(address=("10.0.0.1", 9092), registration=20_000, lost_at=lost_at - REDIAL_TIMEOUT_MS / 1000)
    assert await _ended(Dialled().fetcher(), monkeypatch, was_lost=True, redial=late) is None


async def run_until(
    ended: asyncio.Event,
    fetcher: ReplicaFetcher,
    open_connection: Callable[[Redial | None], Awaitable[None]],
    lost: Redial | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let a fetcher with one partition dial. A connection that it opens is lost at once, and is to be dialled as `lost`
    says."""

    async def use(_: Redial | None) -> Redial | None:
        return lost

    monkeypatch.setattr(fetcher, "_open", open_connection)
    monkeypatch.setattr(fetcher, "_use", use)
    fetcher.partitions[TopicPartition("a", 0)] = cast(Any, None)
    fetcher._work.set()
    running = asyncio.ensure_future(fetcher.run())
    await ended.wait()
    running.cancel()


@pytest.mark.parametrize("registration", [20_000, 20_001])
def test_an_address_is_dialled_again_only_while_its_broker_is_registered_as_before(
    monkeypatch: pytest.MonkeyPatch, registration: int
) -> None:
    """One that was started again may listen elsewhere, and is dialled at its new address."""
    dialled: list[Redial | None] = []

    async def check() -> None:
        fetcher, twice = Dialled().fetcher(), asyncio.Event()
        redial = Redial(address=("10.0.0.1", 9092), registration=registration, lost_at=0.0)

        async def open_connection(to: Redial | None) -> None:
            dialled.append(to)
            if len(dialled) == 2:
                twice.set()

        await run_until(twice, fetcher, open_connection, redial, monkeypatch)

    SimulatedWorld().run(check())
    assert [each is not None for each in dialled] == [False, registration == 20_000]


def test_pauses_between_attempts_begin_anew_after_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that is away for a moment must not cost a second, because it was away for long once before."""
    opened_at: list[float] = []

    async def check() -> None:
        fetcher, loop, ended = Dialled().fetcher(), asyncio.get_running_loop(), asyncio.Event()

        async def open_connection(_: Redial | None) -> None:
            opened_at.append(loop.time())
            if len(opened_at) == 12:
                ended.set()
            if len(opened_at) != 9:
                raise NetworkError("unreachable")

        await run_until(ended, fetcher, open_connection, None, monkeypatch)

    SimulatedWorld().run(check())
    pauses_ms = [round((after - before) * 1000) for before, after in pairwise(opened_at)]
    first, *_ = RECONNECT_MS
    assert pauses_ms == [*RECONNECT_MS, *[RECONNECT_MS[-1]] * (8 - len(RECONNECT_MS)), first, *RECONNECT_MS[:2]]


@pytest.mark.invariant("I36")
@pytest.mark.parametrize("phase", [AskingEpochEnd(0), AskingLeaderEnds()], ids=["epoch end", "leader ends"])
async def test_a_question_that_finds_its_connection_closing_is_asked_on_the_next_one(phase: FollowerPhase) -> None:
    """The end of a connection is told one turn later. A question that was sent in between was gone: its follower asked
    nothing more, and stayed out of the ISR until the next leader epoch."""
    follower = _follower(flushes=False, synced_end=0)
    follower.state.phase = phase
    fetcher, closing, following = _fetcher(), Wire(), Wire()

    def refuse(body: FetchRequest, on_reply: object) -> None:
        raise ConnectionClosed("connection to broker-1:9092 is closed")

    closing.send = refuse  # type: ignore[method-assign]
    if isinstance(phase, AskingEpochEnd):
        fetcher.ask_epoch_end(follower, AskEpochEnd(leader_epoch=0, epoch=0))
    else:
        fetcher.ask_leader_ends(follower, 0)
    for wire in (closing, following):
        fetcher._connection = cast(Any, wire)
        fetcher._send_all()
    assert len(following.sent) == 1
    fetcher._send_all()
    assert len(following.sent) == 1
