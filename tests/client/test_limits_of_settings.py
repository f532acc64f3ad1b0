"""The least value of each number that a client is made with."""

import inspect
from typing import Any

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import InvalidCall
from minibroker.client.producer.producer import Producer

EVERY_CLIENT = dict.fromkeys(
    ("request_timeout_ms", "retry_backoff_ms", "retry_backoff_max_ms", "metadata_max_age_ms", "bootstrap_timeout_ms"), 1
)
LEAST: dict[type[Any], dict[str, int]] = {
    AdminClient: EVERY_CLIENT,
    Consumer: {
        **EVERY_CLIENT,
        "fetch_max_wait_ms": 0,
        "fetch_min_bytes": 1,
        "fetch_max_bytes": 1,
        "max_partition_fetch_bytes": 1,
        "max_poll_records": 1,
    },
    Producer: {
        **EVERY_CLIENT,
        "linger_ms": 0,
        "max_block_ms": 0,
        "delivery_timeout_ms": 1,
        "max_in_flight_requests_per_connection": 1,
        "batch_size": 1_024,
        "max_request_size": 1_024,
        "buffer_memory": 1_024,
    },
}


@pytest.mark.parametrize("client", LEAST)
def test_every_number_that_a_client_is_made_with_is_named_here(client: type[Any]) -> None:
    defaults = {name: each.default for name, each in inspect.signature(client).parameters.items()}
    numbers = {name for name, default in defaults.items() if type(default) in (int, float)}
    assert numbers == set(LEAST[client])


@pytest.mark.parametrize(
    ("client", "name", "least"), [(client, *each) for client, limits in LEAST.items() for each in limits.items()]
)
def test_a_number_is_taken_from_its_least_value_on(client: type[Any], name: str, least: int) -> None:
    others = {"linger_ms": 0} if client is Producer else {}  # a delivery may not end before its linger
    client(bootstrap_servers="localhost", **{**others, name: least})
    with pytest.raises(InvalidCall, match=f"^{name} is {least - 1}; it must be a number of at least {least}$"):
        client(bootstrap_servers="localhost", **{**others, name: least - 1})
