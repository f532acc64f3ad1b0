"""How a follower dials its leader: at which address, and how long it waits for the connection."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.replicas.replica_fetcher import CONNECT_TIMEOUT_MS, REDIAL_TIMEOUT_MS, Redial, ReplicaFetcher
from minibroker.runtime.observer import UNOBSERVED
from minibroker.runtime.ports import ConnectionRefused, NetworkError

REGISTERED = ("broker-1", 9092)
LOST = ("10.0.0.1", 9092)
REDIAL = Redial(address=LOST, registration=20_000, lost_at=0.0)


class Dialled:
    """A leader that may refuse; what it is dialled with, and what is told of its refusals."""

    def __init__(self, error: NetworkError | None = None) -> None:
        self.dials: list[tuple[object, ...]] = []
        self.refusals: list[tuple[int, int | None]] = []
        self.connection = SimpleNamespace(on_closed=None, closed=True)
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
            leader_registration=lambda _: 20_000,
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
