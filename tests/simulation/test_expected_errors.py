"""Which errors of clients are findings of a run."""

import pytest

from minibroker.client.errors import NOWHERE, CallTimedOut, ClientClosed, MinibrokerError, broker_error
from minibroker.protocol.errors import ErrorCode
from minibroker.runtime.request_channel import RequestFailed
from minibroker.simulation.swarm.history import History


def findings(error: Exception) -> list[str]:
    history = History()
    history.note_error("reader", error)
    return [each.text for each in history.findings]


@pytest.mark.parametrize(
    "error",
    [
        broker_error(ErrorCode.NOT_ENOUGH_REPLICAS, NOWHERE),
        CallTimedOut("offsets are not known", broker_error(ErrorCode.LEADER_NOT_AVAILABLE, NOWHERE)),
        RequestFailed("cannot connect"),
        TimeoutError(),
    ],
)
def test_what_faults_lead_to_is_no_finding(error: Exception) -> None:
    assert findings(error) == []


@pytest.mark.parametrize(
    "error",
    [
        MinibrokerError("not foreseen"),
        ClientClosed("the producer is not open"),
        broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, NOWHERE),
        CallTimedOut("the position is not known", broker_error(ErrorCode.CORRUPT_MESSAGE, NOWHERE)),
        AssertionError(),
    ],
)
def test_any_other_error_is_a_finding(error: Exception) -> None:
    assert findings(error) == [f"reader met {type(error).__name__}: {error}"]
