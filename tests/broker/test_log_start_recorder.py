"""A log start is recorded before it is applied and reported, and only for a replica that is still here."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.replicas import log_start_recorder
from minibroker.broker.replicas.log_start_recorder import LogStartRecorder
from minibroker.broker.replication.state import Fetching
from minibroker.protocol.files.checkpoints import LogStartReason
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import BadEntry, DiskError
from tests.broker.log.machine import PARTITION, drive


class Replica:
    """A replica whose log starts at 0; it notes what happens to it, in order."""

    topic_partition = PARTITION

    def __init__(self, *, obeys: bool = True, is_offline: bool = False, writes: int = 1) -> None:
        self.did: list[str] = []
        self.log = self
        self.state = SimpleNamespace(log_start_offset=0, leader_epoch=1, is_offline=is_offline, phase=Fetching())
        self.fails = False
        self.error: DiskError = DiskError("smoke")
        self._obeys = obeys
        self._writes = writes
        """How often the start must be written, because it rises meanwhile."""

    @property
    def is_start_recorded(self) -> bool:
        return self._writes == 0

    async def record_start(self, *start: object) -> None:
        if self.fails:
            raise self.error
        self._writes -= 1
        self.did.append("recorded")

    def handle(self, event: Any) -> None:
        self.did.append("handled")
        if self._obeys:
            self.state.log_start_offset = event.log_start_offset

    def report(self, *_: object, **fields: object) -> None:
        self.did.append(f"reported {fields['offset']}")

    def delete_head(self) -> None:
        self.did.append("deleted")


def recorder_for(replica: Replica, *, is_here: bool = True) -> LogStartRecorder:
    known = {PARTITION: replica if is_here else Replica()}
    return LogStartRecorder(
        cast(Any, known),
        cast(Any, None),
        lambda *_: replica.did.append("failed"),
        lambda _: replica.did.append("asked again"),
    )


def raised(replica: Replica, start: int, *, is_here: bool = True) -> bool:
    recorder = recorder_for(replica, is_here=is_here)
    return drive(recorder.raise_start(cast(Any, replica), start, LogStartReason.RETENTION))


def test_a_later_start_is_recorded_then_applied_then_reported_and_then_files_go() -> None:
    replica = Replica()
    assert raised(replica, 5)
    assert replica.did == ["recorded", "handled", "reported 5", "deleted"]


def test_a_start_that_the_log_has_already_changes_nothing() -> None:
    replica = Replica()
    assert raised(replica, 0)
    assert replica.did == []


@pytest.mark.parametrize(("start", "is_there"), [(4_999, True), (5_000, True), (5_001, False)])
def test_without_a_leader_epoch_no_start_rises(start: int, is_there: bool) -> None:
    replica = Replica()
    replica.state.log_start_offset, replica.state.leader_epoch = 5_000, None
    assert raised(replica, int(str(start))) == is_there
    assert replica.did == []


def test_heads_are_deleted_of_every_log() -> None:
    replicas = [Replica() for _ in range(3)]
    recorder = recorder_for(replicas[0])
    recorder._partitions = cast(Any, dict(enumerate(replicas)))
    recorder.delete_heads()
    assert [replica.did for replica in replicas] == [["deleted"]] * 3


def test_a_decision_of_an_epoch_that_is_over_deletes_and_reports_nothing() -> None:
    replica = Replica(obeys=False)
    assert not raised(replica, 5)
    assert replica.did == ["recorded", "handled"]


def test_a_partition_that_was_replaced_while_its_start_was_recorded_decides_nothing() -> None:
    replica = Replica()
    assert not raised(replica, 5, is_here=False)
    assert replica.did == ["recorded"]


@pytest.mark.parametrize(
    ("replica", "is_here", "expected"),
    [
        (Replica(), True, ["recorded", "asked again"]),
        (Replica(writes=3), True, ["recorded", "recorded", "recorded", "asked again"]),
        (Replica(writes=0), True, ["asked again"]),
        (Replica(), False, []),
        (Replica(is_offline=True), True, []),
    ],
)
def test_a_start_of_the_leader_is_recorded_and_then_reported_to_it(
    replica: Replica, is_here: bool, expected: list[str]
) -> None:
    drive(recorder_for(replica, is_here=is_here)._record(cast(Any, replica)))
    assert replica.did == expected


def test_a_start_that_cannot_be_recorded_is_a_failure_of_its_log_and_is_not_reported() -> None:
    replica = Replica()
    replica.fails = True
    drive(recorder_for(replica)._record(cast(Any, replica)))
    assert replica.did == ["failed"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_start_that_rises_again_later_is_recorded_again(fails: bool) -> None:
    """One at a time; but a writer that has ended must not be taken for one that will write it."""
    replica, begun = Replica(), list[str]()
    recorder = recorder_for(replica)

    def own(work: Any, name: str) -> None:
        begun.append(name)
        work.close()

    cast(Any, recorder)._tasks = SimpleNamespace(own=own)
    for _ in range(2):
        recorder.record_soon(cast(Any, replica))
    assert begun == [f"start-{PARTITION}"]
    replica.fails = fails
    drive(recorder._record(cast(Any, replica)))
    recorder.record_soon(cast(Any, replica))
    assert begun == [f"start-{PARTITION}"] * 2


def test_the_partition_of_a_topic_made_again_does_not_wait_for_the_writer_of_the_deleted_one() -> None:
    """That writer neither records the new log's start nor reports it: the leader waited for it, up to a second."""
    deleted, begun, asked_again = Replica(), list[Any](), list[Any]()
    recorder = recorder_for(deleted)
    cast(Any, recorder)._tasks = SimpleNamespace(own=lambda work, name: begun.append(work))
    cast(Any, recorder)._fetch_next = asked_again.append
    recorder.record_soon(cast(Any, deleted))
    made_again = Replica()
    cast(Any, recorder)._partitions[PARTITION] = made_again
    recorder.record_soon(cast(Any, made_again))
    for work in begun:
        drive(work)
    assert (deleted.did, made_again.did, asked_again) == ([], ["recorded"], [made_again])


def test_retention_of_a_log_that_fails_is_its_failure_and_the_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise one bad file would fill the disk, and no operator would know which."""
    monkeypatch.setattr(log_start_recorder, "retention_start", lambda *_: 5)
    replicas, failed = [Replica() for _ in range(3)], list[object]()
    for replica in replicas:
        replica.state.is_leader, replica.state.fenced, replica.state.high_watermark = True, False, 9
    replicas[1].fails, replicas[1].error = True, BadEntry("it is a directory")
    known: Any = {TopicPartition("t", number): each for number, each in enumerate(replicas)}
    for name, each in known.items():
        each.topic_partition = name
    unused = cast(Any, None)
    recorder = LogStartRecorder(known, unused, lambda *failure: failed.append(failure), unused)
    drive(recorder.apply_retention(cast(Any, SimpleNamespace(now_ms=lambda: 0))))
    assert failed == [(replicas[1], replicas[1].error)]
    assert [bool(replica.did) for replica in replicas] == [True, False, True]
