"""A name that another client has, or one that is misspelt, gets an error with ours."""

from collections.abc import Callable
from typing import Any

import pytest

import minibroker
from minibroker import AdminClient, Consumer, InvalidCall, Producer, WrongArguments
from minibroker.client.argument_hints import CLASSES, METHODS, PARAMETERS

untyped: Any = minibroker


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: untyped.Producer("localhost:9092"), "Producer(bootstrap_servers='localhost:9092')"),
        (lambda: untyped.AdminClient(["a:1"]), "AdminClient(bootstrap_servers=['a:1'])"),
        (lambda: untyped.Consumer("t", group_id="g"), "there are no consumer groups"),
        (lambda: untyped.Producer(transactional_id="t"), "producer_name=.. fences"),
        (lambda: untyped.Producer(group_id="g"), "groups are for consumers, and there are none"),
        (lambda: untyped.Producer(brokers="a:1"), "use bootstrap_servers"),
        (lambda: untyped.Producer(linger=5), "do you mean linger_ms?"),
        (lambda: untyped.AdminClient(xyz=1), "AdminClient has no parameter 'xyz'"),
        (lambda: untyped.Producer().__enter__(), "use `async with Producer(..)`"),
        (lambda: list(untyped.Consumer("t")), "use `async for record in consumer`"),
    ],
)
def test_wrong_arguments_name_the_right_ones(call: Callable[[], object], advice: str) -> None:
    with pytest.raises(WrongArguments) as raised:
        call()
    assert advice in str(raised.value)
    assert isinstance(raised.value, TypeError), "as a program expects it"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("Producr", "minibroker has no 'Producr': do you mean Producer?"),
        ("consumer", None),
        ("KafkaConsumer", "use Consumer"),
        ("Zebra", None),
    ],
)
def test_a_class_that_does_not_exist_names_ours(name: str, advice: str | None) -> None:
    """`from minibroker import ..` tells nothing of an AttributeError, so it is an ImportError."""
    with pytest.raises(ImportError) as raised:
        exec(f"from minibroker import {name}")
    assert (advice or f"cannot import name '{name}'") in str(raised.value)


def test_no_hint_is_for_a_class_that_exists() -> None:
    assert not set(CLASSES) & set(minibroker.__all__)
    assert not hasattr(minibroker, "Zebra")
    with pytest.raises(AttributeError, match="has no attribute 'Producr': do you mean Producer"):
        getattr(minibroker, "Producr")  # noqa: B009


def test_an_address_in_place_of_a_topic_is_recognised() -> None:
    with pytest.raises(InvalidCall, match="given as bootstrap_servers='localhost:9092'"):
        Consumer("localhost:9092")


@pytest.mark.parametrize(
    ("client", "name", "advice"),
    [
        (Producer(), "send_batch", r"use send_many\(topic, values\)"),
        (Consumer("t"), "subscribe", r"assign\(\.\.\)"),
        (Consumer("t"), "comit", "Consumer has no 'comit'$"),
        (Producer(), "flsh", "do you mean flush"),
        (AdminClient(), "create_partitions", "when a topic is created"),
    ],
)
def test_a_method_that_does_not_exist_names_ours(client: object, name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=advice):
        getattr(client, name)


@pytest.mark.parametrize("client_class", [Producer, Consumer, AdminClient])
def test_no_hint_is_for_a_name_that_exists(client_class: type[object]) -> None:
    owner = client_class.__name__
    assert not set(METHODS[owner]) & set(dir(client_class))
    parameters = client_class.__init__.__kwdefaults__ or {}
    assert not (set(PARAMETERS[owner]) | set(PARAMETERS[""])) & set(parameters)


def test_a_misspelt_parameter_of_a_call_gets_a_similar_one() -> None:
    producer: Any = Producer()
    with pytest.raises(WrongArguments, match=r"^Producer.send_and_wait has no parameter 'val': do you mean value\?$"):
        producer.send_and_wait("lines", val=b"x")
    admin: Any = AdminClient()
    with pytest.raises(TypeError, match="do you mean partitions"):
        admin.create_topic("lines", num_partitions=3)
