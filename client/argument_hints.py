"""What to use instead of a name that other clients have: for people who come from aiokafka, kafka-python or confluent.

Owns: the errors for a parameter or method that a public class does not have. Pure.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from minibroker.client.errors import WrongArguments
from minibroker.protocol.similar_names import similar_name

P = ParamSpec("P")
T = TypeVar("T")

_NO_GROUPS = "there are no consumer groups: give topics to Consumer(..) or assign(..), and keep your positions yourself"
_NO_COMMITS = (
    "positions are not stored in the cluster: keep the offset with what you derive from the records, and seek() there"
    " at the next start"
)
_NO_TRANSACTIONS = "there are no transactions; producer_name=.. fences an earlier process of the same name"
_NO_SECURITY = "clients are neither authenticated nor encrypted (docs/SECURITY.md)"
_OWN_LOOP = "a client runs on the event loop that calls start()"

PARAMETERS: dict[str, dict[str, str]] = {
    "": {
        "brokers": "use bootstrap_servers",
        "bootstrap_server": "use bootstrap_servers",
        "hosts": "use bootstrap_servers",
        "servers": "use bootstrap_servers",
        "loop": _OWN_LOOP,
        "sasl_mechanism": _NO_SECURITY,
        "security_protocol": _NO_SECURITY,
        "ssl_context": _NO_SECURITY,
    },
    "Producer": {
        "compression_type": "records are not compressed",
        "group_id": "groups are for consumers, and there are none: a producer just sends",
        "max_batch_size": "use batch_size",
        "name": "use client_id, or producer_name to fence an earlier process",
        "retries": "a record is tried again until delivery_timeout_ms",
        "transactional_id": _NO_TRANSACTIONS,
        "transaction_timeout_ms": _NO_TRANSACTIONS,
    },
    "Consumer": {
        "auto_commit_interval_ms": _NO_COMMITS,
        "consumer_timeout_ms": "use getone(timeout_ms) or getmany(timeout_ms=..)",
        "enable_auto_commit": _NO_COMMITS,
        "group_id": _NO_GROUPS,
        "group_instance_id": _NO_GROUPS,
        "heartbeat_interval_ms": _NO_GROUPS,
        "max_poll_interval_ms": _NO_GROUPS,
        "session_timeout_ms": _NO_GROUPS,
        "topic": "topics come first: Consumer('lines', bootstrap_servers=..)",
        "topics": "topics come first: Consumer('lines', 'words', bootstrap_servers=..)",
    },
    "AdminClient": {},
}
"""By class; those of the first entry hold for all."""

CLASSES = {
    "AIOKafkaAdminClient": "use AdminClient",
    "AIOKafkaConsumer": "use Consumer",
    "AIOKafkaProducer": "use Producer",
    "Broker": "a broker is a process: `minibroker broker`, or minibroker.testing in tests",
    "ConsumerRebalanceListener": _NO_GROUPS,
    "ConsumerRecord": "use Record",
    "KafkaAdminClient": "use AdminClient",
    "KafkaConsumer": "use Consumer",
    "KafkaError": "use MinibrokerError",
    "KafkaProducer": "use Producer",
    "Message": "use Record",
}

METHODS: dict[str, dict[str, str]] = {
    "Producer": {
        "begin_transaction": _NO_TRANSACTIONS,
        "commit_transaction": _NO_TRANSACTIONS,
        "create_batch": "use send_many(topic, values)",
        "init_transactions": _NO_TRANSACTIONS,
        "poll": "not needed: deliveries and their callbacks come while the event loop runs",
        "produce": "use send(..) or send_and_wait(..)",
        "send_batch": "use send_many(topic, values)",
        "transaction": _NO_TRANSACTIONS,
    },
    "Consumer": {
        "commit": _NO_COMMITS,
        "committed": _NO_COMMITS,
        "consume": "use getmany(timeout_ms=..), or `async for record in consumer`",
        "partitions_for_topic": "use partitions_for(topic)",
        "poll": "use getmany(timeout_ms=..), or `async for record in consumer`",
        "seek_to_committed": _NO_COMMITS,
        "subscribe": _NO_GROUPS,
        "subscription": "use assignment()",
        "topics": "use AdminClient.list_topics()",
        "unsubscribe": "use assign([])",
    },
    "AdminClient": {
        "create_partitions": "the number of partitions is chosen when a topic is created",
        "delete_records": "use alter_configs with retention.ms or retention.bytes",
        "describe_topic": "use describe_topics([name])",
        "list_consumer_groups": "there are no consumer groups",
        "list_transactions": f"use list_producer_names(): {_NO_TRANSACTIONS}",
        "topics": "use list_topics()",
    },
}


def advice_on_class(name: str, known: Iterable[str]) -> str:
    """What to use instead of a class that the package does not have; empty if there is no advice."""
    return CLASSES.get(name) or _similar(name, known)


def check_arguments(
    owner: str, positional: Iterable[object], unknown: Mapping[str, object], known: Iterable[str]
) -> None:
    """Raise WrongArguments for what `owner(..)` was given and does not take."""
    for value in positional:
        raise WrongArguments(f"name the parameter: {owner}(bootstrap_servers={value!r:.200})")
    for name in unknown:
        advice = PARAMETERS.get(owner, {}).get(name) or PARAMETERS[""].get(name) or _similar(name, known)
        raise WrongArguments(f"{owner} has no parameter {name!r}" + (f": {advice}" if advice else ""))


def with_hints(method: Callable[P, T]) -> Callable[P, T]:
    """A method that raises WrongArguments, with a similar name, for a parameter that it does not have. Not for methods
    that are called once per record without waiting, because they must stay fast."""
    known = signature(method).parameters

    @wraps(method)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        for name in named:
            if name not in known:
                check_arguments(method.__qualname__, (), {name: None}, known)
        return method(*arguments, **named)

    return call


def refuse_attribute(client: object, name: str) -> Any:
    """The `__getattr__` of the public classes: raises AttributeError, with the name of ours if there is one."""
    its_class = type(client)
    advice = METHODS.get(its_class.__name__, {}).get(name) or _similar(name, dir(its_class))
    raise AttributeError(f"{its_class.__name__} has no {name!r}" + (f": {advice}" if advice else ""))


def _similar(name: str, known: Iterable[str]) -> str:
    found = similar_name(name, (each for each in known if not each.startswith("_")))
    return f"do you mean {found}?" if found is not None else ""
