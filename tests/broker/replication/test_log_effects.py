"""The interpreter of effects on a log: which operation each effect is, and what the core learns of it."""

from collections.abc import Sequence

import pytest

from minibroker.broker.replicas import partition
from minibroker.broker.replicas.log_effects import LOG_EFFECTS
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.epoch_history import EpochHistory
from minibroker.broker.replication.state import ReplicaState, ReplicationConfig, Role
from minibroker.protocol.files.checkpoints import LogStartReason
from minibroker.simulation.model.replica import header_for

APPEND = ev.AppendBatches(tokens=("x",), acks=-1, base_offset=8, leader_epoch=2)


class ScriptedLog:
    """A log from 0 to 8 with batches of four records; notes what is done, in order."""

    def __init__(self, fails: bool = False) -> None:
        self.state = ReplicaState(config=ReplicationConfig(broker_id=1), epoch_history=EpochHistory([(2, 0)]))
        self.first_offset = self.log_start_offset = 0
        self.log_end_offset = 8
        self.done: list[object] = []
        self._fails = fails

    def now_ms(self) -> int:
        return 100

    def decide(self, event: ev.ReplicaEvent) -> None:
        self.done.append(event)

    def append_batches(self, effect: ev.AppendBatches) -> int | None:
        self.done.append("written")
        return None if self._fails else 12

    def appended(self) -> None:
        self.done.append("followers woken")

    def append_fetched(self, effect: ev.AppendFetched) -> None:
        self.done.append("written")

    def truncate_to(self, effect: ev.TruncateTo) -> None:
        self.log_end_offset = effect.end_offset // 4 * 4

    def reset_to(self, effect: ev.ResetTo) -> None:
        self.first_offset = self.log_start_offset = self.log_end_offset = effect.offset

    def trim_before(self, effect: ev.TrimBefore) -> None:
        self.log_start_offset = effect.log_start_offset
        if effect.drops_all:
            self.first_offset = effect.log_start_offset

    def lower_start(self, effect: ev.LowerStart) -> int:
        return 4

    def write_epoch_history(self, entries: Sequence[tuple[int, int]]) -> None:
        self.done.append(entries)


def perform(effect: ev.ReplicaEffect, log: ScriptedLog | None = None) -> list[object]:
    log = log or ScriptedLog()
    LOG_EFFECTS[type(effect)](log, effect)
    return log.done


def test_a_broker_performs_every_effect() -> None:
    assert set(partition._PERFORMERS) == set(ev.ReplicaEffect.__subclasses__())


def test_an_append_is_reported_and_then_followers_wake() -> None:
    reported = ev.BatchesAppended(tokens=("x",), acks=-1, base_offset=8, end_offset=12, now_ms=100)
    assert perform(APPEND) == ["written", reported, "followers woken"]


def test_a_failed_append_is_not_reported() -> None:
    assert perform(APPEND, ScriptedLog(fails=True)) == ["written"]


def test_a_copy_is_reported_with_all_that_the_leader_sent() -> None:
    sent = {"batches": (header_for(8, 2),), "high_watermark": 5, "log_start_offset": 3, "low_watermark": 1}
    log = ScriptedLog()
    log.state.role = Role.FOLLOWER
    assert perform(ev.AppendFetched(**sent), log) == ["written", ev.FetchedAppended(**sent)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("effect", "start", "end"),
    [(ev.TruncateTo(end_offset=6, reason="a test"), 0, 4), (ev.ResetTo(offset=20), 20, 20)],
)
def test_a_cut_is_reported_with_what_is_left(effect: ev.ReplicaEffect, start: int, end: int) -> None:
    assert perform(effect) == [ev.TailTruncated(log_start_offset=start, log_end_offset=end)]


@pytest.mark.parametrize(("drops_all", "reported"), [(True, [ev.HeadDeleted(first_offset=8)]), (False, [])])
def test_a_later_start_is_reported_only_if_batches_are_gone(drops_all: bool, reported: list[object]) -> None:
    effect = ev.TrimBefore(log_start_offset=8, reason=LogStartReason.COPIED, drops_all=drops_all)
    assert perform(effect) == reported


def test_a_lower_start_is_reported_as_far_as_it_was_reached() -> None:
    assert perform(ev.LowerStart(log_start_offset=1)) == [ev.StartLowered(wanted=1, log_start_offset=4)]


def test_the_history_is_written_as_it_is_when_its_turn_comes() -> None:
    assert perform(ev.WriteEpochHistory()) == [[(2, 0)]]
