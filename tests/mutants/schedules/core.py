"""Orders of events that cannot happen in a whole cluster, given to the pure core of one follower.

A connection keeps the order of its messages and each leader has its own connection, so a late answer cannot reach the
core through this broker's shell. The core refuses it nevertheless, which is checked from outside: the follower's log is
compared with the log of its leader.
"""

from collections.abc import Callable

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.replica import step, step_fetch
from minibroker.broker.replication.state import Fetching, ReplicaState
from minibroker.controller.core.controller_state import (
    ControllerSettings,
    ControllerState,
    Leadership,
    RegisteredBroker,
    ReplicaLog,
    Topic,
)
from minibroker.controller.core.election import elect
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader
from minibroker.simulation.checks.finding import CheckerFinding
from minibroker.simulation.model.replica import header_for
from tests.broker.replication.core_cluster import CoreCluster

FOLLOWER = 3
FIRST = TopicPartition("a", 0)
ASSIGNMENT = (1, 2, 3)
Log = list[tuple[int, str]]
"""(leader epoch, value) by offset."""


class LoneFollower:
    """One replica, empty and without a leader at first, and the log of its present leader."""

    def __init__(self) -> None:
        self.replica = CoreCluster(len(ASSIGNMENT)).replicas[FOLLOWER]
        self.leader_log: Log = []
        self.findings: list[CheckerFinding] = []

    @property
    def state(self) -> ReplicaState:
        return self.replica.state

    @property
    def log(self) -> Log:
        return [(batch.header.partition_leader_epoch, batch.value) for batch in self.replica.log]

    def handle(self, event: ev.ReplicaEvent) -> None:
        before = self.log
        self.replica.handle(event)
        held = self.log
        gone = before[len(held) :]
        if gone and gone == self.leader_log[len(held) : len(before)]:
            self._find("I32", f"cut {gone}, which its leader holds at the same place")
        if isinstance(self.state.phase, Fetching) and held != self.leader_log[: len(held)]:
            self._find("I7", f"fetches on, holding {held}; its leader holds {self.leader_log}")

    def _find(self, invariant: str, text: str) -> None:
        self.findings.append(CheckerFinding(invariant=invariant, text=text))

    def follow(self, leader_id: int, epoch: int, leader_log: Log) -> None:
        self.leader_log = leader_log
        self.handle(
            ev.LeaderAndIsrReceived(
                now_ms=0,
                leader_id=leader_id,
                leader_epoch=epoch,
                partition_epoch=epoch,
                in_sync_replicas=ASSIGNMENT,
                assignment=ASSIGNMENT,
            )
        )

    def receive_epoch_end(self, epoch: int, asked: int, end_offset: int) -> None:
        self.handle(
            ev.EpochEndAnswered(
                leader_epoch=epoch, asked_epoch=asked, error_code=ErrorCode.NONE, epoch=asked, end_offset=end_offset
            )
        )

    def receive_records(self, epoch: int, offset: int, records: Log, mark: int) -> None:
        batches: tuple[BatchHeader, ...] = tuple(
            header_for(offset + index, written_in) for index, (written_in, _) in enumerate(records)
        )
        answer = ev.FetchAnswered(
            leader_epoch=epoch,
            fetch_offset=offset,
            error_code=ErrorCode.NONE,
            high_watermark=mark,
            log_start_offset=0,
            batches=batches,
        )
        cluster = self.replica.cluster
        cluster.values |= {(offset + index, written_in): value for index, (written_in, value) in enumerate(records)}
        self.handle(answer)


def epoch_end_of_an_older_epoch() -> list[CheckerFinding]:
    """KAFKA-8012: two leaders get the same request, and the first one answers when the second is already followed."""
    replica = LoneFollower()
    old: Log = [(0, "a"), (0, "b"), (0, "c")]
    replica.follow(1, 0, old)
    replica.receive_records(0, 0, old, mark=1)
    replica.follow(1, 1, old)
    replica.follow(2, 2, [(0, "a"), (0, "b"), (2, "x")])
    replica.receive_epoch_end(epoch=1, asked=0, end_offset=3)
    replica.receive_epoch_end(epoch=2, asked=0, end_offset=2)
    replica.receive_records(2, 2, [(2, "x")], mark=3)
    return replica.findings


def records_of_an_older_epoch() -> list[CheckerFinding]:
    """KAFKA-18991: a leader leads again after another one; its records of the first time arrive only now."""
    replica = LoneFollower()
    replica.follow(1, 1, [(1, "a"), (1, "b")])
    replica.receive_records(1, 0, [(1, "a")], mark=1)
    replica.follow(1, 3, [(1, "a"), (2, "x")])
    replica.receive_epoch_end(epoch=3, asked=1, end_offset=1)
    replica.receive_records(1, 1, [(1, "b")], mark=1)
    replica.receive_records(3, 1, [(2, "x")], mark=2)
    return replica.findings


def out_of_range_and_back() -> list[CheckerFinding]:
    """KAFKA-2143: a leader answers 'out of range', but has caught up when it is asked for its log start and end."""
    replica = LoneFollower()
    records: Log = [(0, "a"), (0, "b")]
    replica.follow(1, 0, [*records, (0, "c")])
    replica.receive_records(0, 0, records, mark=2)
    replica.handle(ev.FetchAnswered(leader_epoch=0, fetch_offset=2, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    replica.handle(
        ev.LeaderEndsAnswered(leader_epoch=0, error_code=ErrorCode.NONE, log_start_offset=0, log_end_offset=3)
    )
    replica.receive_epoch_end(epoch=0, asked=0, end_offset=3)
    return replica.findings


def _all_started_again(members: tuple[int, ...], logs: dict[int, ReplicaLog], directories: str) -> ControllerState:
    """a-0 has no leader; every broker has a new incarnation and has reported its log. `directories`: the letter of the
    log directories that they have now; `d` are the ones that were in sync."""
    before = Leadership(
        leader=None,
        leader_epoch=6,
        in_sync_replicas=members,
        incarnations=tuple((each, f"i{each}") for each in members),
        directories=tuple((each, f"d{each}") for each in members),
        controller_epoch=1,
        partition_epoch=7,
    )
    brokers = {
        each: RegisteredBroker(
            broker_id=each, broker_epoch=each, incarnation_id=f"n{each}", directory_id=f"{directories}{each}"
        )
        for each in ASSIGNMENT
    }
    return ControllerState(
        settings=ControllerSettings(controller_id=1),
        controller_epoch=2,
        brokers=brokers,
        topics={FIRST.topic: Topic(topic_id="a", assignment={0: ASSIGNMENT})},
        leaderships={FIRST: before},
        logs={each: {FIRST: log} for each, log in logs.items()},
    )


def _check_leaderless(state: ControllerState, what: Callable[[int], str]) -> list[CheckerFinding]:
    """I28: no replica may lead."""
    change = elect(state, FIRST, "all are back")
    if change is None or change.after.leader is None:
        return []
    leader = change.after.leader
    return [CheckerFinding(invariant="I28", text=f"broker {leader} leads with {what(leader)}", facts=(str(change),))]


def largest_log_is_on_a_full_disk() -> list[CheckerFinding]:
    """Pure elections: two members have lost their tails, the third one waits for room on its disk."""
    ends = {1: 41, 2: 41, 3: 60}
    logs = {each: ReplicaLog(log_end_offset=end, last_epoch=6) for each, end in ends.items()}
    state = _all_started_again(ASSIGNMENT, logs, directories="d")
    state.offline_replicas = {3: frozenset([FIRST])}
    return _check_leaderless(state, lambda leader: f"{ends[leader]} of 60 records")


def replaced_disk_alone_in_sync() -> list[CheckerFinding]:
    """Pure elections: the only member of the ISR is back with an earlier disk and a part of the log; the others hold
    everything."""
    a_part = ReplicaLog(undisturbed_since=frozenset(["n3"]), log_end_offset=40, last_epoch=3)
    logs = {each: a_part if each == 3 else ReplicaLog() for each in ASSIGNMENT}
    state = _all_started_again((3,), logs, directories="n")
    return _check_leaderless(state, lambda leader: "a part, and the others will cut what they have")


def joiner_starts_before_the_new_leader() -> list[CheckerFinding]:
    """The previous leader had deleted up to 1, where this member of its ISR starts, too; it is dead, but still in the
    ISR. A replica that was down since before is back, and lacks nothing at its end."""
    replica = LoneFollower()
    replica.follow(1, 0, [(0, "a"), (0, "b")])
    replica.receive_records(0, 0, [(0, "a"), (0, "b")], mark=2)
    answer = ev.FetchAnswered(
        leader_epoch=0, fetch_offset=2, error_code=ErrorCode.NONE, high_watermark=2, log_start_offset=1
    )
    replica.handle(answer)
    leads = ev.LeaderAndIsrReceived(
        now_ms=0,
        leader_id=FOLLOWER,
        leader_epoch=1,
        partition_epoch=1,
        in_sync_replicas=(1, FOLLOWER),
        assignment=ASSIGNMENT,
    )
    step(replica.state, leads)
    back = ev.FollowerFetched(
        now_ms=0,
        replica_id=2,
        broker_epoch=None,
        current_leader_epoch=1,
        fetch_offset=2,
        last_fetched_epoch=0,
        eligible=True,
        log_start_offset=0,
    )
    _, effects = step_fetch(replica.state, back)
    if any(isinstance(each, ev.ProposeIsr) for each in effects):
        return [
            CheckerFinding(
                invariant="I39", text="a log that starts at 0 may join, and lead others that have deleted it"
            )
        ]
    return []
