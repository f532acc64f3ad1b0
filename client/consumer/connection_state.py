"""The state of one partition of a consumer: distinguishes 'no data' from 'no broker'."""

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

from minibroker.client.cluster import Cluster
from minibroker.client.consumer.cursor import Cursor
from minibroker.client.errors import MinibrokerError
from minibroker.protocol.ids import BrokerId, LeaderEpoch

State = Literal["fetching", "paused", "no-leader", "connecting", "refused", "no-position", "validating", "halted"]


class ConnectionState(msgspec.Struct, frozen=True):
    """Why no records come: 'no data' and 'no broker' are different things."""

    state: State
    """fetching: the leader answers; there is no more data. connecting: the leader does not answer now.
    refused: it keeps answering with an error, which `error` holds.
    no-position: the leader is being asked where to begin. validating: a new leader is being asked whether the position
    is still valid. halted: an error waits for a seek."""
    leader: BrokerId | None
    leader_epoch: LeaderEpoch | None
    last_answer_ms_ago: float | None
    refused_for_ms: float | None
    """For how long all answers have been errors."""
    error: MinibrokerError | None

    @property
    def healthy(self) -> bool:
        """Whether new records would arrive."""
        return self.state == "fetching"


class LeaderState(msgspec.Struct):
    """The state of one leader."""

    answered_at_ms: float | None = None
    failures: int = 0
    error: MinibrokerError | None = None


class FetchProgress(Protocol):
    """What the fetcher knows of the leaders."""

    @property
    def leaders(self) -> Mapping[BrokerId, LeaderState]: ...
    def now_ms(self) -> float: ...
    def is_late(self, leader: BrokerId | None) -> bool:
        """Whether this leader has been silent for longer than a long poll takes."""
        ...


def describe_connection(cursor: Cursor, cluster: Cluster, fetcher: FetchProgress) -> ConnectionState:
    """The state of one cursor now."""
    leader = fetcher.leaders.get(cursor.leader) if cursor.leader is not None else None
    answered_at_ms = leader.answered_at_ms if leader is not None else None
    ago = None if answered_at_ms is None else fetcher.now_ms() - answered_at_ms
    error = cursor.halted or cursor.error or (leader.error if leader is not None else None)
    state = _state(cursor, cluster, slow=error is not None and fetcher.is_late(cursor.leader))
    if state == "no-leader" or (state == "connecting" and error is None):  # its last error is out of date
        error = cluster.leader_problem(cursor.topic_partition)
    since = cursor.refused_since_ms
    refused_for_ms = None if since is None else fetcher.now_ms() - since
    return ConnectionState(state, cursor.leader, cursor.leader_epoch, ago, refused_for_ms, error)


def _state(cursor: Cursor, cluster: Cluster, *, slow: bool) -> State:
    if cursor.halted is not None:
        return "halted"
    if cursor.paused:
        return "paused"
    if cursor.leader is None:
        return "no-leader"
    if not cluster.is_connected(cursor.leader):
        return "connecting"
    if cursor.needs_reset:
        return "no-position"
    if cursor.needs_validation:
        return "validating"
    if slow:
        return "connecting"
    return "fetching" if cursor.refused_since_ms is None else "refused"
