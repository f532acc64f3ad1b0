"""The answers of a broker by the names that it was asked about. Pure.

Owns: that only names which were asked about count, and the error for one that the answer leaves out. Why: a broken
broker may answer for other names, or for none. Leaves to others: what an answer says.
"""

from collections.abc import Collection, Iterable
from typing import Protocol, TypeVar

from minibroker.client.errors import NOWHERE, BrokerError, Where, broker_error
from minibroker.protocol.errors import ErrorCode


class NamedAnswer(Protocol):
    @property
    def name(self) -> str: ...


A = TypeVar("A", bound=NamedAnswer)


def answers_for(names: Collection[str], answers: Iterable[A]) -> list[A]:
    """Those that name one of these."""
    wanted = set(names)
    return [answer for answer in answers if answer.name in wanted]


def left_out(name: str, where: Where = NOWHERE) -> BrokerError:
    """The error for a name without an answer."""
    text = f"the answer leaves {name!r} out: use the same minibroker version here and on all brokers"
    return broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, where, text)
