"""A leader that does not answer: how long a consumer and a producer wait for it, and when they ask who leads now."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.client.consumer import fetcher
from minibroker.client.consumer.fetcher import Fetcher
from minibroker.client.producer import sender
from minibroker.client.producer.sender import Sender

REQUEST_TIMEOUT_MS = 5_000.0
MAX_WAIT_MS = 700.0
SENT_AT_MS = 9_000.0
Leaders = Sequence[int | None]
"""Of the partitions of a request to broker 1, as metadata names them now."""


class Scene:
    """What a client did about a request to broker 1."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.connection = SimpleNamespace(abort=lambda: self.done.append("closes"))
        self.cluster = SimpleNamespace(request_refresh=lambda: self.done.append("asks who leads"))
        self.settings = SimpleNamespace(max_wait_ms=MAX_WAIT_MS, request_timeout_ms=REQUEST_TIMEOUT_MS)


def fetches(leaders: Leaders, waited_ms: float) -> list[str]:
    """A leader may leave a fetch unanswered for MAX_WAIT_MS anyway."""
    scene = Scene()
    cursors = {number: SimpleNamespace(cursor=SimpleNamespace(leader=each)) for number, each in enumerate(leaders)}
    flight = SimpleNamespace(connection=scene.connection, sent_at_ms=SENT_AT_MS, cursors=cursors)
    waiting = SimpleNamespace(_asked={1: flight}, _settings=scene.settings, _cluster=scene.cluster)
    Fetcher._check_slow(cast(Any, waiting), SENT_AT_MS + MAX_WAIT_MS + waited_ms)
    return scene.done


def produces(leaders: Leaders, waited_ms: float) -> list[str]:
    """The first of two requests counts."""
    scene = Scene()
    batches = [SimpleNamespace(queue=SimpleNamespace(leader=each)) for each in leaders]
    first = SimpleNamespace(connection=scene.connection, sent_at_ms=SENT_AT_MS, batches=batches)
    second = SimpleNamespace(connection=scene.connection, sent_at_ms=SENT_AT_MS + waited_ms, batches=[])
    channels = {
        1: SimpleNamespace(broker_id=1, in_flight={7: first, 8: second}),
        2: SimpleNamespace(broker_id=2, in_flight={}),
    }
    waiting = SimpleNamespace(_channels=channels, _settings=scene.settings, _cluster=scene.cluster)
    Sender._check_channels(cast(Any, waiting), SENT_AT_MS + waited_ms)
    return scene.done


@pytest.mark.parametrize(
    ("leaders", "waited_ms", "done"),
    [
        ([2], 999.0, []),
        ([1], 1_000.0, ["asks who leads"]),
        ([1, None], 1_000.0, ["asks who leads"]),
        ([None], 4_999.0, ["asks who leads"]),
        ([1], 4_999.0, ["asks who leads"]),
        ([1], 5_000.0, ["closes"]),
        ([2], 1_000.0, ["closes"]),
        ([1, 2, 1], 1_000.0, ["closes"]),
    ],
)
@pytest.mark.parametrize("client", [fetches, produces])
def test_a_slow_leader_is_waited_for_as_long_as_it_leads(
    client: Callable[[Leaders, float], list[str]], leaders: Leaders, waited_ms: float, done: list[str]
) -> None:
    """One that was replaced would hold its partitions up; one that leads may still answer, and to close its connection
    would put records in doubt."""
    assert (fetcher.SLOW_ANSWER_MS, sender.SLOW_ANSWER_MS) == (1_000.0, 1_000.0)
    assert client(leaders, waited_ms) == done
