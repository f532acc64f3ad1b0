"""The log of administration: one line for each resource that a request to this controller changes.

Owns: which requests are logged, and the wording of the lines (logger `minibroker.administration`, level INFO). Leaves
to others: executing the requests (`controller/administration`).

A dry run (validate_only) is not logged, nor is a request that this broker refuses because it is not the controller.
Text from the peer is quoted, because it may hold any characters.
"""

import logging
from collections.abc import Iterator

from minibroker.protocol.errors import ErrorCode, error_code
from minibroker.protocol.wire import messages as m
from minibroker.runtime.server.incoming_request import IncomingRequest

log = logging.getLogger("minibroker.administration")

RESOURCES_LOGGED_MAX = 100
"""Per request. A request may name ten thousand; one more line counts the rest."""
QUOTED_MAX = 64
"""Characters of a name or client id: a log line must not be many times as long as what the peer sent for it."""

ResourceResult = tuple[str, int]
"""A resource and the error code of its result."""


def record(request: IncomingRequest, response: m.Response) -> None:
    """Log one line for each changed resource, and one line for all refused ones: refusals cost the peer nothing, so
    they must not fill a disk."""
    if response.error_code == ErrorCode.NOT_CONTROLLER:
        return
    results = list(_resources(request.body, response))
    changed = [resource for resource, code in results if not code]
    refused = [(resource, code) for resource, code in results if code]
    for resource in changed[:RESOURCES_LOGGED_MAX]:
        _log(request, resource, ErrorCode.NONE.name)
    if len(changed) > RESOURCES_LOGGED_MAX:
        _log(request, f"{len(changed) - RESOURCES_LOGGED_MAX} more", ErrorCode.NONE.name)
    if refused:
        resource, code = refused[0]
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        _log(request, f"{resource}{more}", error_code(code).name)


def _log(request: IncomingRequest, resource: str, outcome: str) -> None:
    connection, client_id = request.connection, _quoted(request.client_id)
    log.info(
        "operation=%s resource=%s outcome=%s principal=%s client_id=%s address=%s",
        *(m.ApiKey(request.api_key).name, resource, outcome, connection.principal, client_id, connection.peer),
    )


def _quoted(text: str) -> str:
    return repr(text if len(text) <= QUOTED_MAX else f"{text[:QUOTED_MAX]}…")


def _resources(body: m.Request, response: m.Response) -> Iterator[ResourceResult]:
    """Each resource of the request with its error code; a request that failed as a whole failed for each resource."""
    failed = response.error_code
    match body, response:
        case m.CreateTopicsRequest(validate_only=False), m.CreateTopicsResponse() if not failed:
            yield from ((f"topic:{_quoted(each.name)}", each.error_code) for each in response.topics)
        case m.CreateTopicsRequest(validate_only=False), _:
            yield from ((f"topic:{_quoted(each.name)}", failed) for each in body.topics)
        case m.DeleteTopicsRequest(), m.DeleteTopicsResponse() if not failed:
            yield from ((f"topic:{_quoted(each.name)}", each.error_code) for each in response.responses)
        case m.DeleteTopicsRequest(), _:
            yield from ((f"topic:{_quoted(each)}", failed) for each in body.topic_names)
        case m.IncrementalAlterConfigsRequest(validate_only=False), m.IncrementalAlterConfigsResponse() if not failed:
            yield from ((_config_of(each), each.error_code) for each in response.responses)
        case m.IncrementalAlterConfigsRequest(validate_only=False), _:
            yield from ((_config_of(each), failed) for each in body.resources)
        case m.ElectLeadersRequest(), m.ElectLeadersResponse() if body.confirmed and not failed:
            yield from ((_partition(each), each.error_code) for each in response.partitions)
        case m.ElectLeadersRequest(), _ if body.confirmed:
            yield from ((_partition(each), failed) for each in body.confirmed)
        case m.DeleteProducerNamesRequest(), m.DeleteProducerNamesResponse() if not failed:
            yield from ((f"producer:{_quoted(each.name)}", each.error_code) for each in response.responses)
        case m.DeleteProducerNamesRequest(), _:
            yield from ((f"producer:{_quoted(each)}", failed) for each in body.names)
        case m.ControlledShutdownRequest(offline_partitions=None), _:
            yield f"broker:{body.broker_id}", failed


def _config_of(resource: m.AlterConfigsResource | m.AlterConfigsResult) -> str:
    kinds = {int(m.ResourceType.TOPIC): "topic", int(m.ResourceType.BROKER): "broker"}
    kind = kinds.get(resource.resource_type, f"type {resource.resource_type}")
    return f"{kind}:{_quoted(resource.resource_name)}"


def _partition(election: m.ElectionPreview | m.ConfirmedElection) -> str:
    return f"partition:{_quoted(election.topic_name)}-{election.partition_index}"
