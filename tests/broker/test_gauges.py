"""What a broker says of itself to those who watch it: whether it is ready, and counters that begin at zero."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from minibroker.broker.membership.metadata_image import MetadataImage
from minibroker.broker.monitoring.gauges import lag_of, readiness
from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import UpdateMetadataRequest


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
    image = cast(Any, SimpleNamespace(has_been_updated=is_informed, is_of_an_earlier_registration=lambda epoch: False))
    found = readiness(registration, image)
    assert (found.is_ready, found.reason) == (reason is None, reason or "registered under broker epoch 7")


def test_a_broker_that_has_registered_again_is_ready_when_the_controller_reaches_it() -> None:
    """Until then it refuses Metadata, and leads nothing. It said that it was ready, as long as that lasted."""
    registration, image = (
        cast(Any, SimpleNamespace(is_fenced=lambda: False, broker_epoch=8)),
        MetadataImage(1, "cluster"),
    )
    for addressed, is_ready in ((7, False), (8, True)):
        order = UpdateMetadataRequest(controller_id=1, controller_epoch=1, broker_epoch=addressed)
        assert image.apply_update(order, addressed).error_code == ErrorCode.NONE
        found = readiness(registration, image)
        assert found.is_ready is is_ready
    assert found.reason == "registered under broker epoch 8"


def test_every_counter_begins_at_zero() -> None:
    numbers = [value for value in msgspec.structs.astuple(BrokerCounters()) if isinstance(value, int)]
    assert numbers
    assert not any(numbers)


@pytest.mark.parametrize(("follower_end", "lag"), [(None, 1_000), (4_000_000_990, 10), (4_000_001_001, 0)])
def test_no_follower_lags_by_more_records_than_there_are(follower_end: int | None, lag: int) -> None:
    """Of one that was not heard in this leader epoch, all offsets from 0 on were counted: after each change of leaders,
    and as long as a follower is down, the lag of an old log was billions of records."""
    leader = cast(Any, SimpleNamespace(log_start_offset=4_000_000_000, log_end_offset=4_000_001_000))
    assert lag_of(leader, follower_end) == lag
