"""An address that a broker cannot listen on is named with its setting and the cure."""

import pytest

from minibroker.broker.configuration.listening import naming_setting
from minibroker.runtime.ports import AddressInUse, NetworkError


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            AddressInUse("127.0.0.1:9404 is in use by another process"),
            "127.0.0.1:9404 is in use by another process: end that process, or give this broker another port in"
            " metrics.listener",
        ),
        (
            NetworkError("cannot listen on 9.9.9.9:1: no route"),
            "cannot listen on 9.9.9.9:1: no route: correct metrics.listener",
        ),
    ],
)
def test_the_error_ends_with_the_cure(error: NetworkError, told: str) -> None:
    """Three brokers of one machine that were given one metrics.listener did not start, and said no more than that."""
    with pytest.raises(type(error)) as raised, naming_setting("metrics.listener"):
        raise error
    assert str(raised.value) == told
