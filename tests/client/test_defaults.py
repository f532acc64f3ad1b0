"""The defaults of the three clients: those that the manual names, and the same ones where they mean the same."""

import re
from pathlib import Path
from typing import Any

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.producer.producer import Producer

MANUAL = Path(__file__).parents[2] / "docs" / "CLIENT.md"
SHARED = {
    "bootstrap_servers": "localhost:9092",
    "request_timeout_ms": 30_000,
    "retry_backoff_ms": 100,
    "retry_backoff_max_ms": 1_000,
    "metadata_max_age_ms": 300_000,
    "bootstrap_timeout_ms": 10_000,
}
CONSUMER = {
    "auto_offset_reset": "latest",
    "on_truncation": "raise",
    "on_undecodable": "raise",
    "fetch_max_wait_ms": 500,
    "fetch_min_bytes": 1,
    "fetch_max_bytes": 50 * 1_048_576,
    "max_partition_fetch_bytes": 1_048_576,
    "max_poll_records": 500,
    "check_crcs": True,
    "isolation_level": "read_uncommitted",
}
"""As in Kafka's consumer, except for what it does not have."""
UNITS = {"": 1, "MiB": 1_048_576}


def defaults(client: type[Any]) -> dict[str, Any]:
    found: dict[str, Any] = client.__init__.__kwdefaults__
    return found


@pytest.mark.parametrize("client", [AdminClient, Consumer, Producer])
def test_the_clients_share_defaults(client: type[Any]) -> None:
    assert defaults(client).items() >= SHARED.items()


def test_the_consumers_defaults() -> None:
    others = {"client_id", "key_deserializer", "value_deserializer", "runtime"}
    assert defaults(Consumer).keys() == CONSUMER.keys() | SHARED.keys() | others
    assert defaults(Consumer).items() >= CONSUMER.items()


def test_the_producers_defaults_are_those_of_the_manual() -> None:
    told: dict[str, int] = {}
    for names, values in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ([^|]+) \|", MANUAL.read_text(), re.MULTILINE):
        numbers = re.findall(r"(\d+) ?(MiB)?", values)
        for name, (number, unit) in zip(re.findall(r"\w+", names), numbers, strict=False):
            told[name] = int(number) * UNITS[unit]
    numeric = {name: value for name, value in defaults(Producer).items() if type(value) is int}
    assert {name: told.get(name) for name in numeric} == numeric
