"""What a broker says of itself to those who watch it: whether it is ready, and counters that begin at zero."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from minibroker.broker.monitoring.gauges import readiness
from minibroker.broker.monitoring.metrics import BrokerCounters


@pytest.mark.parametrize(
    ("is_fenced", "is_informed", "reason"),
    [
        (True, True, "ZooKeeper session not confirmed alive"),
        (False, False, "registered, but no metadata received from the controller yet"),
        (False, True, None),
    ],
)
def test_a_broker_is_ready_when_it_is_registered_and_knows_the_cluster(
    is_fenced: bool, is_informed: bool, reason: str | None
) -> None:
    registration = cast(Any, SimpleNamespace(is_fenced=lambda: is_fenced, broker_epoch=7))
    image = cast(Any, SimpleNamespace(has_been_updated=is_informed))
    found = readiness(registration, image)
    assert (found.is_ready, found.reason) == (reason is None, reason or "registered under broker epoch 7")


def test_every_counter_begins_at_zero() -> None:
    numbers = [value for value in msgspec.structs.astuple(BrokerCounters()) if isinstance(value, int)]
    assert numbers
    assert not any(numbers)
