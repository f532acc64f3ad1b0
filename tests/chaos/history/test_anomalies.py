"""One bad history by hand for each anomaly, which shows that one and no other, and a clean one that shows none."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from minibroker.chaos.history.anomalies import check_history
from minibroker.chaos.history.client_history import Answered, EventLog, Polled, Sent, from_json_lines, to_json_lines
from minibroker.chaos.history.promise import Promise

ORDERED = Promise(in_order=frozenset({"writer"}), first_copies_in_order=frozenset({"plain"}))


class Script:
    """Writes a history, one whole operation per call, on partition `a-0`."""

    def __init__(self) -> None:
        self.log = EventLog()

    def send(self, *records: tuple[str, int | None], kind: Any = "ok", process: str = "writer") -> None:
        operation = self.log.invoke(0.0, process, "send", tuple(Sent("a-0", value) for value, _ in records))
        sent = tuple(Sent("a-0", value, offset) for value, offset in records)
        self.log.complete(0.0, operation, kind, sent=sent, leader_epoch=0)

    def poll(self, *records: tuple[str, int], process: str = "reader", epochs: tuple[int, ...] = ()) -> None:
        operation = self.log.invoke(0.0, process, "poll")
        known = epochs or (0,) * len(records)
        polled = tuple(Polled("a-0", v, o, e) for (v, o), e in zip(records, known, strict=True))
        self.log.complete(0.0, operation, "ok", polled=polled)

    def change_last(self, **changes: Any) -> None:
        self.log.events[-1] = replace(self.log.events[-1], **changes)


def clean(script: Script) -> None:
    script.send(("x", 0))
    script.send(("y", 1), ("z", 2))
    script.send(("lost", None), kind="fail")
    script.poll(("x", 0), ("y", 1))
    script.poll(("z", 2))
    script.poll(("x", 0), process="late")


def inconsistent_offsets(script: Script) -> None:
    script.poll(("x", 0), process="one")
    script.poll(("y", 0), process="two")


def aborted_read(script: Script) -> None:
    script.send(("x", None), kind="fail")
    script.poll(("x", 0))


def lost_write(script: Script) -> None:
    script.send(("x", 0))
    script.send(("y", 1))
    script.poll(("y", 1))


def unseen(script: Script) -> None:
    script.send(("x", 0))


def duplicate(script: Script) -> None:
    script.send(("x", 0))
    script.poll(("x", 0), process="one")
    script.poll(("x", 1), process="two")


def nonmonotonic_send(script: Script) -> None:
    script.send(("x", 1))
    script.send(("y", 0))
    script.poll(("y", 0), ("x", 1))


def int_nonmonotonic_send(script: Script) -> None:
    script.send(("x", 1), ("y", 0))
    script.poll(("y", 0), ("x", 1))


def poll_skip(script: Script) -> None:
    script.poll(("x", 0), ("y", 1), ("z", 2), process="whole")
    script.poll(("x", 0))
    script.poll(("z", 2))


def int_poll_skip(script: Script) -> None:
    script.poll(("x", 0), ("y", 1), ("z", 2), process="whole")
    script.poll(("x", 0), ("z", 2))


def nonmonotonic_poll(script: Script) -> None:
    script.poll(("x", 0), ("y", 1))
    script.poll(("x", 0))


def int_nonmonotonic_poll(script: Script) -> None:
    script.poll(("x", 0), ("y", 1), process="whole")
    script.poll(("y", 1), ("x", 0))


def offset_gap(script: Script) -> None:
    script.poll(("x", 0), ("y", 2))


def epoch_falls(script: Script) -> None:
    script.poll(("x", 0), ("y", 1), epochs=(3, 2))


def epoch_changes(script: Script) -> None:
    """Two readers get the same record, one of them from a log that another leader wrote."""
    script.poll(("x", 0), epochs=(3,))
    script.poll(("x", 0), process="other", epochs=(4,))


def two_writers(script: Script) -> None:
    script.send(("x", 0))
    script.change_last(broker=1)
    script.send(("y", 1))
    script.change_last(broker=2)
    script.poll(("x", 0), ("y", 1))


def beyond_high_watermark(script: Script) -> None:
    script.poll(("x", 0))
    script.change_last(high_watermark=0)


def high_watermark_falls(script: Script) -> None:
    script.poll(("x", 0))
    script.change_last(high_watermark=9, leader_epoch=1)
    script.poll(("y", 1))
    script.change_last(high_watermark=8, leader_epoch=1)


def answer_beyond_its_high_watermark(script: Script) -> None:
    """The second answer of one poll."""
    script.poll(("x", 0), ("y", 1))
    sound = Answered("a-0", high_watermark=1, broker=1, leader_epoch=0, end_offset=1)
    script.change_last(answers=(sound, replace(sound, end_offset=2)))


def answers_go_back_in_one_epoch(script: Script) -> None:
    """Answers without records, with one of an earlier leader in between that came late."""
    for epoch, mark in ((4, 9), (3, 5), (4, 8)):
        script.poll()
        script.change_last(answers=(Answered("a-0", mark, broker=1, leader_epoch=epoch),))


def real_time_order(script: Script) -> None:
    """Two producers: the second sends after the first was acknowledged."""
    script.send(("x", 1))
    script.send(("y", 0), process="other")
    script.poll(("y", 0), ("x", 1))


def first_copies_out_of_order(script: Script) -> None:
    """Both calls overlap: the later one's record was written first, while the earlier one was sent again."""
    for value in ("x", "y"):
        script.log.invoke(0.0, "plain", "send", (Sent("a-0", value),))
    for operation, value, offset in ((1, "y", 0), (0, "x", 1)):
        script.log.complete(0.0, operation, "ok", sent=(Sent("a-0", value, offset),), leader_epoch=0)
    script.poll(("y", 0), ("x", 1))


def lost_in_its_epoch(script: Script) -> None:
    script.send(("x", 0), kind="info")
    script.poll(("y", 0))


BAD: dict[str, tuple[Callable[[Script], None], frozenset[str]]] = {
    "inconsistent-offsets": (inconsistent_offsets, frozenset()),
    "aborted-read": (aborted_read, frozenset()),
    "lost-write": (lost_write, frozenset({"unseen"})),
    "unseen": (unseen, frozenset()),
    "duplicate": (duplicate, frozenset()),
    "nonmonotonic-send": (nonmonotonic_send, frozenset({"real-time-order"})),
    "int-nonmonotonic-send": (int_nonmonotonic_send, frozenset()),
    "poll-skip": (poll_skip, frozenset({"offset-gap"})),
    "int-poll-skip": (int_poll_skip, frozenset({"offset-gap"})),
    "nonmonotonic-poll": (nonmonotonic_poll, frozenset({"offset-gap"})),
    "int-nonmonotonic-poll": (int_nonmonotonic_poll, frozenset({"offset-gap"})),
    "offset-gap": (offset_gap, frozenset()),
    "epoch-falls": (epoch_falls, frozenset()),
    "epoch-changes": (epoch_changes, frozenset()),
    "two-writers": (two_writers, frozenset()),
    "beyond-high-watermark": (beyond_high_watermark, frozenset()),
    "high-watermark-falls": (high_watermark_falls, frozenset()),
    "beyond-high-watermark in one answer": (answer_beyond_its_high_watermark, frozenset()),
    "high-watermark-falls between answers": (answers_go_back_in_one_epoch, frozenset()),
    "real-time-order": (real_time_order, frozenset()),
    "first-copies-out-of-order": (first_copies_out_of_order, frozenset()),
    "lost-in-its-epoch": (lost_in_its_epoch, frozenset()),
}
"""Anomaly: a history that shows it, and the other anomalies that it necessarily shows, because a stricter check sees
it."""


def test_clean_history_shows_nothing() -> None:
    script = Script()
    clean(script)
    assert check_history(script.log.events, ORDERED) == []


@pytest.mark.invariant("I12", "I17", "I21", "I22", "I23", "I25", "I26")
@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_history_shows_its_anomaly_and_no_other(name: str) -> None:
    write, others = BAD[name]
    script = Script()
    write(script)
    assert {found.name for found in check_history(script.log.events, ORDERED)} == {name.split()[0], *others}


@pytest.mark.invariant("I11")
def test_a_new_leader_and_another_reader_may_know_a_lower_high_watermark() -> None:
    script = Script()
    for process, epoch, mark, end in (("one", 1, 9, 2), ("one", 2, 5, None), ("two", 2, 4, None), ("one", 2, 6, None)):
        script.poll(process=process)
        script.change_last(answers=(Answered("a-0", mark, 1, epoch, end), Answered("a-1", 0)))
    assert check_history(script.log.events, ORDERED) == []


@pytest.mark.invariant("I22")
def test_a_record_that_no_client_sent_there_is_invented() -> None:
    script = Script()
    script.send(("x", 0))
    script.poll(("x", 0), ("never sent", 1))
    every_send = Promise(knows_all_sends=True)
    assert [found.name for found in check_history(script.log.events, every_send)] == ["invented-record"]


def test_copies_of_a_retry_come_in_any_number_and_a_failed_record_may_come_late() -> None:
    script = Script()
    script.send(("x", 0), process="plain")
    script.send(("late", None), kind="info", process="plain")
    script.send(("y", 2), process="plain")
    script.poll(("x", 0), ("x", 1), ("y", 2), ("late", 3))
    assert check_history(script.log.events, ORDERED) == []


def test_a_new_leader_may_lose_what_one_replica_acknowledged() -> None:
    for records, epochs in (([("y", 0)], (1,)), ([("w", 0), ("z", 1)], (0, 1))):
        script = Script()
        if len(records) == 2:
            script.send(("w", 0), kind="info")
        script.send(("x", len(records) - 1), kind="info")
        script.send(("beyond the end", 7), kind="info")
        script.poll(*records, epochs=epochs)
        assert check_history(script.log.events, ORDERED) == []


def test_retention_explains_what_is_skipped_and_unseen() -> None:
    script = Script()
    script.send(("x", 0))
    script.send(("y", 1))
    script.poll(("y", 1))
    promise = Promise(log_starts={"a-0": 1}, deleting=frozenset({"a-0"}))
    assert check_history(script.log.events, promise) == []


def test_retention_explains_a_record_of_one_replica_above_all_that_was_read() -> None:
    """Everything was deleted before a reader came."""
    script = Script()
    script.send(("x", 5), kind="info")
    script.poll(("y", 0))
    retained = Promise(log_starts={"a-0": 6}, deleting=frozenset({"a-0"}))
    assert check_history(script.log.events, retained) == []


@pytest.mark.invariant("I21")
def test_retention_does_not_explain_another_record_at_the_offset_of_one_replicas() -> None:
    script = Script()
    script.send(("x", 0), kind="info")
    script.poll(("y", 0))
    retained = Promise(log_starts={"a-0": 6}, deleting=frozenset({"a-0"}))
    assert [found.name for found in check_history(script.log.events, retained)] == ["lost-in-its-epoch"]


@pytest.mark.invariant("I21")
@pytest.mark.parametrize(("last_read", "expected"), [(0, []), (5, []), (6, ["lost-in-its-epoch"])])
def test_a_later_leader_may_have_written_what_retention_deleted_unread(last_read: int, expected: list[str]) -> None:
    """The log is empty and ends at 7. Only a reader of its last record knows that no later epoch stands in it."""
    script = Script()
    script.send(("x", 8), kind="info")
    script.poll(("y", last_read))
    retained = Promise(log_starts={"a-0": 7}, deleting=frozenset({"a-0"}))
    assert [found.name for found in check_history(script.log.events, retained)] == expected


@pytest.mark.invariant("I21")
def test_retention_does_not_explain_an_acknowledgement_without_an_offset() -> None:
    """A duplicate's answer is no proof: no reader ever saw the record."""
    script = Script()
    script.send(("x", 0))
    script.send(("duplicate", None))
    script.poll(("y", 1))
    promise = Promise(log_starts={"a-0": 1}, deleting=frozenset({"a-0"}))
    assert [found.name for found in check_history(script.log.events, promise)] == ["unseen"]


def test_writes_of_unknown_outcome_may_appear_or_not() -> None:
    script = Script()
    script.send(("x", None), kind="info")
    script.send(("y", None), kind="info")
    script.poll(("y", 0))
    assert check_history(script.log.events, ORDERED) == []


LAST = Promise(last_reader="last")


@pytest.mark.invariant("I21", "I22")
@pytest.mark.parametrize("kind", ["ok", "info"])
@pytest.mark.parametrize("last_read", [[], [("x", 0)]])
def test_a_record_that_was_read_and_is_gone_at_the_end_is_unseen(kind: str, last_read: list[tuple[str, int]]) -> None:
    """Nothing was written in its place, so no offset holds two values."""
    script = Script()
    script.send(("x", 0))
    script.send(("y", 1), kind=kind)
    script.poll(("x", 0), ("y", 1))
    script.poll(*last_read, process="last")
    found = check_history(script.log.events, LAST)
    assert {each.name for each in found} == {"unseen"}
    assert found[-1].facts[-1] == "readers saw it, and last did not"
    assert len(found) == 2 - len(last_read)


def test_what_others_read_after_the_last_reader_began_may_have_been_written_late() -> None:
    script = Script()
    script.send(("x", 0))
    script.send(("late", None), kind="info")
    script.poll(("x", 0), process="last")
    script.poll(("x", 0), ("late", 1))
    assert check_history(script.log.events, LAST) == []


def test_retention_explains_what_the_last_reader_did_not_see() -> None:
    script = Script()
    script.send(("x", 0))
    script.send(("y", 1))
    script.poll(("x", 0), ("y", 1))
    script.poll(("y", 1), process="last")
    retained = replace(LAST, log_starts={"a-0": 1}, deleting=frozenset({"a-0"}))
    assert check_history(script.log.events, retained) == []


def test_history_survives_its_file() -> None:
    script = Script()
    clean(script)
    assert from_json_lines(to_json_lines(script.log.events)) == script.log.events
