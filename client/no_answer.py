"""What a client says where no broker answers: the addresses with their reasons, and the cure.

Owns: these sentences, for programs and for commands. Leaves to others: who is asked, and for how long.
"""

from collections.abc import Iterable, Mapping

from minibroker.client.errors import ClusterUnreachable
from minibroker.client.metadata_cache import Address


def no_broker_answered(failures: Iterable[tuple[object, object]]) -> str:
    """The sentence about addresses and their reasons, as in 'no broker answered at host:9092 (connection refused)'."""
    return f"no broker answered at {', '.join(f'{server} ({_why(server, reason)})' for server, reason in failures)}"


def cure_for_no_answer(option: str, *, are_silent: bool) -> str:
    """The sentence behind it; `option` is where the user gives the addresses. Brokers that accept connections and are
    silent run already."""
    resume = "Let brokers that are paused go on with `minibroker cluster resume ID`"
    start = "Start one with `minibroker cluster up`"
    return f"{resume if are_silent else start}, or pass the right address {option}"


def no_answer_sentences(failures: Iterable[tuple[object, object]], option: str, *, are_silent: bool) -> str:
    """Both."""
    return f"{no_broker_answered(failures)}. {cure_for_no_answer(option, are_silent=are_silent)}"


def _why(server: object, reason: object) -> str:
    """The reason without the address, which stands before it."""
    text = str(reason)
    rest = text.removeprefix(f"cannot connect to {server}: ").removeprefix(f"{server} ")
    return text if rest == text else rest[:1].lower() + rest[1:]


def none_answered(failures: Mapping[Address, Exception], *, are_silent: bool = False) -> ClusterUnreachable:
    """The error of a client that found no broker."""
    option = "(bootstrap_servers, or -b on the command line)"
    error = ClusterUnreachable(no_answer_sentences(failures.items(), option, are_silent=are_silent))
    error.failures = tuple(failures.items())
    error.are_silent = are_silent
    return error
