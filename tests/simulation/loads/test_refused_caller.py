"""A wrong request must be refused with its own error, and a wrong batch is none that a broker takes."""

import asyncio
import random
from collections import Counter

import pytest

from minibroker.client.errors import CallTimedOut, broker_error
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.record_batch import CorruptBatch, check_batch, check_payload
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.loads.refused_caller import RefusedCaller, WrongRequest, wrong_batches


class StandInScene:
    """Notes what a load does and finds."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.found: list[str] = []
        self.history = History()

    def did(self, what: str) -> None:
        self.done[what] += 1

    def find(self, promise: str, text: str) -> None:
        self.found.append(text)


@pytest.mark.parametrize(
    ("error", "is_found"),
    [
        (None, True),
        (broker_error(ErrorCode.INVALID_CONFIG), False),
        (broker_error(ErrorCode.INVALID_REQUEST), True),
        (broker_error(ErrorCode.NOT_CONTROLLER), False),
        (CallTimedOut("too late"), False),
    ],
    ids=["carried out", "refused rightly", "refused for another reason", "controller moved", "no answer"],
)
def test_request_that_is_not_refused_as_it_should_is_found(error: Exception | None, is_found: bool) -> None:
    scene = StandInScene()

    async def ask() -> None:
        if error is not None:
            raise error

    request = WrongRequest("no setting", ask, (ErrorCode.INVALID_CONFIG,))
    asyncio.run(RefusedCaller(scene, random.Random(1))._ask(request))  # type: ignore[arg-type]
    assert bool(scene.found) is is_found


def test_success_that_a_lost_answer_explains_is_not_found() -> None:
    scene = StandInScene()

    async def ask() -> None:
        """An earlier attempt went unanswered, so that the client takes the refusal for its success."""

    request = WrongRequest("one that exists", ask, (ErrorCode.TOPIC_ALREADY_EXISTS,), may_seem_done=True)
    asyncio.run(RefusedCaller(scene, random.Random(1))._ask(request))  # type: ignore[arg-type]
    assert scene.found == []


@pytest.mark.parametrize("what", wrong_batches())
def test_each_wrong_batch_is_wrong(what: str) -> None:
    batch = wrong_batches()[what]
    with pytest.raises((CorruptBatch, AssertionError)):
        header = check_batch(batch)
        check_payload(batch, 0, header)
        assert header.size_bytes == len(batch)
