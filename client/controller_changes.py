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

LAST_LOOK_MS = 500
"""How long the cause may be looked for at the deadline: the only attempt may have taken all of the time."""
ErrorsOf = Callable[[R], list[int]]


async def change(
    cluster: Cluster,
    request: Request,
    answer: type[R],
    deadline: Deadline,
    errors_of: "ErrorsOf[R]",
    answer_ms: float | None = None,
) -> tuple[R, bool]:
    """Ask the controller, even if it moves, until it answers. Also returns whether an earlier attempt is in doubt.

    With `answer_ms` an attempt that is not answered within it is over, and the controller is looked for again.
    """
    in_doubt = False
    quiet, is_logged = Deadline(LOG_WAIT_AFTER_MS), False
    while True:
        try:
            attempt = deadline if answer_ms is None else Deadline(deadline.at_most(answer_ms))
            reply = await cluster.ask_controller(request, answer, attempt)
            moved = [code for code in errors_of(reply) if code == ErrorCode.NOT_CONTROLLER]
            if not moved:
                return reply, in_doubt
            in_doubt = True  # a controller that ended after it had begun: others refuse the request as a whole
            last: MinibrokerError = broker_error(ErrorCode.NOT_CONTROLLER)
        except BrokerUnreachable as error:
            in_doubt = in_doubt or error.in_doubt
            last = error
        except BrokerError as error:
            if not error.retriable:
                raise
            in_doubt = in_doubt or error.code is ErrorCode.REQUEST_TIMED_OUT  # the controller may get to it yet
            last = error
        with suppress(ClusterUnreachable, CallTimedOut):
            # finds the new controller, or why there is none; rounds are paced, so no busy loop
            await cluster.refresh(Deadline(deadline.remaining_ms() or LAST_LOOK_MS))
        last = cluster.explained(last)
        if deadline.passed:
            doubt = " (a request went unanswered, so it may still be done)" if in_doubt else ""
            raise CallTimedOut(f"the controller did not do it within {round(deadline.timeout_ms)} ms{doubt}", last)
        if quiet.passed and not is_logged:
            is_logged = True
            cluster.log.warning("waiting up to %g s for the controller: %s", deadline.timeout_ms / 1000, last)


def create_errors(reply: CreateTopicsResponse) -> list[int]:
    return [topic.error_code for topic in reply.topics]


def delete_errors(reply: DeleteTopicsResponse) -> list[int]:
    return [topic.error_code for topic in reply.responses]


def no_errors(reply: Response) -> list[int]:
    """Any broker answers, whether it is the controller or not."""
    return []


def alter_errors(reply: IncrementalAlterConfigsResponse) -> list[int]:
    return [resource.error_code for resource in reply.responses]
