"""What kazoo answers, in the terms of the coordination port: errors, stats, and the outcome of a multi.

Owns: the meaning of kazoo's exceptions, by the name of their class: kazoo is imported only when a session is opened.
Leaves to others: the call itself, and its deadline (`zookeeper`).
"""

from collections.abc import Sequence
from typing import Any

from minibroker.runtime.ports import (
    BadVersion,
    CheckOp,
    CoordinationError,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    NotAuthorized,
    NotEmpty,
    Operation,
    SessionExpired,
    SetOp,
    Stat,
)

ANSWERS: dict[str, type[CoordinationError]] = {
    "NoNodeError": NoNode,
    "NodeExistsError": NodeExists,
    "BadVersionError": BadVersion,
    "NotEmptyError": NotEmpty,
    "SessionExpiredError": SessionExpired,
    "NoAuthError": NotAuthorized,
}
"""ZooKeeper's errors."""

NO_ANSWER = frozenset({"ConnectionLoss", "ConnectionClosedError", "OperationTimeoutError", "SessionExpiredError"})
"""kazoo's errors that do not prove contact with ZooKeeper."""

NOT_THE_CAUSE = frozenset({"RolledBackError", "RuntimeInconsistency"})
"""Reported by the operations of a failed multi that did not cause the failure."""


def to_stat(stat: Any) -> Stat:
    return Stat(
        version=stat.version,
        czxid=stat.czxid,
        mzxid=stat.mzxid,
        ephemeral_owner=stat.ephemeralOwner,
        num_children=stat.numChildren,
    )


def add_operation(transaction: Any, operation: Operation) -> None:
    match operation:
        case CreateOp():
            transaction.create(
                operation.path, operation.data, ephemeral=operation.ephemeral, sequence=operation.sequence
            )
        case SetOp():
            transaction.set_data(operation.path, operation.data, version=operation.version)
        case DeleteOp():
            transaction.delete(operation.path, version=operation.version)
        case CheckOp():
            transaction.check(operation.path, version=operation.version)


def raise_failed_operation(operations: Sequence[Operation], results: Sequence[Any]) -> None:
    """kazoo returns the errors of a multi instead of raising them; all but one report that another one failed."""
    for index, result in enumerate(results):
        name = type(result).__name__
        if isinstance(result, Exception) and name not in NOT_THE_CAUSE:
            operation = operations[index]
            error = ANSWERS.get(name, CoordinationError)(
                f"multi: operation {index} ({type(operation).__name__} {operation.path}): {name}"
            )
            error.index = index
            raise error
    if any(isinstance(result, Exception) for result in results):
        raise CoordinationError(f"multi: rolled back without a cause: {results!r}")
