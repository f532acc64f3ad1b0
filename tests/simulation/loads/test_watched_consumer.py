"""What a consumer's answers to fetches must not say: each wrong one, played by the test, is found."""

import pytest

from minibroker.client.consumer.fetch_answer import FetchAnswer
from minibroker.client.consumer.records import Record
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.loads.load_options import TOPIC
from minibroker.simulation.swarm.loads.watched_consumer import WatchedConsumer
from tests.simulation.loads.still_scene import still_scene

PARTITION = TopicPartition(TOPIC, 0)


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
def watched(history: History) -> WatchedConsumer:
    return WatchedConsumer(still_scene(history), "reader", [PARTITION], {})


@pytest.mark.parametrize(
    ("reset", "offset", "is_found"),
    [("earliest", 4, False), ("earliest", 5, True), ("latest", 5, False), ("earliest", 0, True)],
)
def test_record_that_retention_did_not_take_must_be_read(
    history: History, reset: str, offset: int, is_found: bool
) -> None:
    """Each skip in a topic with retention was taken for its work, also where all records were still there."""
    scene = still_scene(history)
    scene.settings["log.retention.bytes"] = "4096"
    scene._workload.watch_deletions({PARTITION: 4})
    reader = WatchedConsumer(scene, "reader", [PARTITION], {"auto_offset_reset": reset})
    reader._next[PARTITION] = 1
    reader._check_place(PARTITION, offset)
    assert scene.deletes(TOPIC)
    assert [each.invariant for each in history.findings] == ["client: order"] * is_found


@pytest.mark.parametrize(("offset", "is_found"), [(1, False), (4, False), (5, True), (0, True)])
def test_steady_reader_skips_only_what_retention_took(history: History, offset: int, is_found: bool) -> None:
    workload = still_scene(history)._workload
    workload.watch_deletions({PARTITION: 4})
    workload._note_read(PARTITION, offset, b"", {PARTITION: 1})
    assert [each.invariant for each in history.findings] == ["I22"] * is_found


def answer(base_offset: int, end_offset: int, partition: TopicPartition = PARTITION) -> FetchAnswer:
    """Of a leader with a high watermark of 10."""
    return FetchAnswer(
        topic_partition=partition,
        broker=1,
        leader_epoch=0,
        high_watermark=10,
        base_offset=base_offset,
        end_offset=end_offset,
    )


@pytest.mark.parametrize(
    ("told", "is_found"),
    [
        (answer(5, 10), False),
        (answer(12, 12), False),  # nothing came: a new leader may know of less than was read
        (answer(5, 11), True),
        (answer(5, 4), True),
        (answer(5, 10, TopicPartition(TOPIC, 1)), True),
    ],
)
def test_answer_that_cannot_be_is_found(
    watched: WatchedConsumer, history: History, told: FetchAnswer, is_found: bool
) -> None:
    watched._told(told)
    assert [each.invariant for each in history.findings] == ["client: FetchAnswer"] * is_found


@pytest.mark.parametrize("offset", [9, 10])
def test_record_that_no_answer_told_of_is_found(
    watched: WatchedConsumer, history: History, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched._consumer, "highwater", lambda partition: 11)
    watched._told(answer(5, 10))
    record = Record(TOPIC, 0, offset, 0, 0, None, b"value")
    watched._read({PARTITION: [record]}, is_whole=False)
    assert [each.invariant for each in history.findings] == ["client: FetchAnswer"] * (offset == 10)
