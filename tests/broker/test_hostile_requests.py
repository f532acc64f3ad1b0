"""Requests of the right types with hostile values harm no broker. `make fuzz` sends more of them."""

import pytest

from tests.broker.hostile_requests import run_seed


@pytest.mark.parametrize("seed", range(1, 9))
def test_no_request_ends_a_broker_or_leaves_its_directory(seed: int) -> None:
    assert run_seed(seed) == []
