"""What a peer may request: an unverified claim to be a broker gives no broker's rights.

Owns: that rule, for every API. Leaves to others: the identity of a peer (`authentication`), and whether a broker's
request is late or wrong (the parts that execute it check epochs).

Only brokers may use the APIs that are cluster actions, or read as a replica: a follower's fetch reports its position
and so moves the high watermark. A broker may only act in its own name: a connection of broker 2 carries no request of
broker 3, nor one of an earlier registration of broker 2.
"""

from collections.abc import Callable
from typing import Any

from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import BrokerEpoch, BrokerId
from minibroker.protocol.wire import messages as m
from minibroker.runtime.principal import Principal

ClaimedSender = tuple[int | None, int | None]
"""The broker id and broker epoch that a request claims to come from; None: no claim."""

CLAIMED_SENDERS: dict[type[m.Request], Callable[[Any], ClaimedSender]] = {
    m.LeaderAndIsrRequest: lambda body: (body.controller_id, None),
    m.UpdateMetadataRequest: lambda body: (body.controller_id, None),
    m.StopReplicaRequest: lambda body: (body.controller_id, None),
    m.AlterPartitionRequest: lambda body: (body.broker_id, body.broker_epoch),
    m.ControlledShutdownRequest: lambda body: (body.broker_id, body.broker_epoch),
    m.GetReplicaLogInfoRequest: lambda body: (None, None),
    m.ConfirmFailureRequest: lambda body: (None, None),
    m.FetchRequest: lambda body: (body.replica_id, body.replica_epoch),
    m.ListOffsetsRequest: lambda body: (body.replica_id, None),
    m.OffsetForLeaderEpochRequest: lambda body: (body.replica_id, None),
}
CLUSTER_ACTIONS = frozenset(key for key, api in m.APIS.items() if api.is_cluster_action)
READS_AS_REPLICA = frozenset({m.ApiKey.FETCH, m.ApiKey.LIST_OFFSETS, m.ApiKey.OFFSET_FOR_LEADER_EPOCH})
"""Any client may use these; only a broker may send them with a replica id."""
assert {m.APIS[key].request for key in CLUSTER_ACTIONS | READS_AS_REPLICA} == set(CLAIMED_SENDERS), (
    "each names its sender"
)


def refuse(
    principal: Principal, body: m.Request, broker_epoch: Callable[[BrokerId], BrokerEpoch | None]
) -> m.Response | None:
    """The refusal of a request that only brokers may send; None: it may be handled.

    `broker_epoch`: epoch of a broker's newest registration known here.
    """
    problem = _problem(principal, body, broker_epoch)
    if problem is None:
        return None
    return m.Response(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=problem)


def _problem(
    principal: Principal, body: m.Request, broker_epoch: Callable[[BrokerId], BrokerEpoch | None]
) -> str | None:
    name = principal.broker
    if name is None:
        api = m.API_OF_REQUEST[type(body)]
        what = "" if api.is_cluster_action else " with a replica id"
        return f"{api.key.name}{what} is for brokers, and {principal} has not proven to be one"
    claimed_id, claimed_epoch = CLAIMED_SENDERS[type(body)](body)
    if claimed_id is not None and claimed_id != name.broker_id:
        return f"this connection is broker {name.broker_id}'s, the request is broker {claimed_id}'s"
    if claimed_epoch is not None and claimed_epoch != name.broker_epoch:
        return f"this connection is of broker epoch {name.broker_epoch}, the request of {claimed_epoch}"
    known = broker_epoch(name.broker_id)
    if known is not None and known > name.broker_epoch:
        return f"broker {name.broker_id} has registered anew since broker epoch {name.broker_epoch}"
    return None
