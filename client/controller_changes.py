"""Changes of the cluster, which its controller makes: repeated until it answers, even if it moves.

Owns: that repetition, and where each answer has its error codes. Leaves to others: what the answers mean (`admin`).
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from minibroker.client.cluster import Cluster
from minibroker.client.errors import (
    BrokerError,
    BrokerUnreachable,
    CallTimedOut,
    ClusterUnreachable,
    MinibrokerError,
    broker_error,
)
from minibroker.client.limits import LOG_WAIT_AFTER_MS, Deadline
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    CreateTopicsResponse,
    DeleteTopicsResponse,
    IncrementalAlterConfigsResponse,
    Request,
    Response,
)

R = TypeVar("R", bound=Response)
ErrorsOf = Callable[[R], list[int]]


async def change(
    cluster: Cluster, request: Request, answer: type[R], deadline: Deadline, errors_of: "ErrorsOf[R]"
) -> tuple[R, bool]:
    """Ask the controller, even if it moves, until it answers. Also returns whether an earlier attempt is in
    doubt."""
    in_doubt = False
    quiet, is_logged = Deadline(LOG_WAIT_AFTER_MS), False
    while True:
        try:
            reply = await cluster.ask_controller(request, answer, deadline)
            moved = [code for code in errors_of(reply) if code == ErrorCode.NOT_CONTROLLER]
            if not moved:
                return reply, in_doubt
            last: MinibrokerError = broker_error(ErrorCode.NOT_CONTROLLER)
        except BrokerUnreachable as error:
            in_doubt = in_doubt or error.in_doubt
            last = error
        except BrokerError as error:
            if not error.retriable:
                raise
            last = error
        with suppress(ClusterUnreachable, CallTimedOut):
            await cluster.refresh(deadline)  # finds the new controller; rounds are paced, so no busy loop
        if cluster.metadata.is_from_fenced and last.code is ErrorCode.NOT_CONTROLLER:
            last = broker_error(ErrorCode.NOT_CONTROLLER, message=cluster.lost_zookeeper())
        if quiet.passed and not is_logged:
            is_logged = True
            cluster.log.warning("waiting up to %g s for the controller: %s", deadline.timeout_ms / 1000, last)
        if deadline.passed:
            doubt = " (a request went unanswered, so it may still be done)" if in_doubt else ""
            raise CallTimedOut(f"the controller did not do it within {round(deadline.timeout_ms)} ms{doubt}", last)


def create_errors(reply: CreateTopicsResponse) -> list[int]:
    return [topic.error_code for topic in reply.topics]


def delete_errors(reply: DeleteTopicsResponse) -> list[int]:
    return [topic.error_code for topic in reply.responses]


def no_errors(reply: Response) -> list[int]:
    """Any broker answers, whether it is the controller or not."""
    return []


def alter_errors(reply: IncrementalAlterConfigsResponse) -> list[int]:
    return [resource.error_code for resource in reply.responses]
