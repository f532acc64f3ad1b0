"""What a start reports of the files beside the logs that it does without."""

import pytest

from minibroker.protocol.events.broker_events import FileNotUsed
from minibroker.protocol.files.checkpoints import SMALL_FILE_BYTES_MAX
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.observer import Observers
from tests.broker.log.machine import PARTITION, PATH, SMALL, TOPIC_ID, Machine, append, drive

LOG = f"{PATH}/{PARTITION}"


def start(machine: Machine) -> list[object]:
    """The events of a start."""
    events: list[object] = []
    machine.open(observer=Observers(events.append))
    return events


def written(machine: Machine) -> None:
    """A log of several segments that was closed cleanly."""
    directory, log = machine.open_log(incarnation_id="one")
    append(log, 40)
    drive(directory.close(clean=True, high_watermarks={PARTITION: 40}, broker_epoch=7))


def test_a_start_after_a_clean_stop_reports_nothing(machine: Machine) -> None:
    written(machine)
    assert start(machine) == []


@pytest.mark.parametrize(
    ("name", "consequence"),
    [
        ("leader-epoch-checkpoint", "the leader epochs are rebuilt from the batches"),
        ("log-start", "a log that begins above offset 0 counts as damaged"),
        ("partition.metadata", "the topic id is topic-id-of-lines, by another file"),
        ("digests", "the digests are computed from the segments"),
        ("newest.snapshot", "the states of producers are read from an older snapshot, or from the batches"),
    ],
)
def test_a_start_reports_each_file_of_a_log_that_it_does_not_use(machine: Machine, name: str, consequence: str) -> None:
    written(machine)
    name = max(machine.file_names(".snapshot")) if name == "newest.snapshot" else name
    machine.edit(name, b"garbage")
    found = [each for each in start(machine) if isinstance(each, FileNotUsed)]
    assert [(each.path, each.consequence) for each in found] == [(f"{LOG}/{name}", consequence)]
    assert "missing" not in found[0].reason, "it is there"


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "digests", "newest.snapshot"])
@pytest.mark.parametrize("other", [(TopicPartition("lines", 1), TOPIC_ID), (TopicPartition("others", 0), "another-id")])
def test_a_start_reports_each_file_that_names_another_log(
    machine: Machine, name: str, other: tuple[TopicPartition, str]
) -> None:
    """Sound, and of the same offsets: only its owner tells it apart."""
    directory, log = machine.open_log(incarnation_id="one")
    append(log, 40)
    append(directory.create_log(*other, SMALL), 40)
    drive(directory.close(clean=True, high_watermarks={PARTITION: 40}, broker_epoch=7))
    name = max(machine.file_names(".snapshot")) if name == "newest.snapshot" else name
    machine.edit(name, machine.disk().read_file(f"{PATH}/{other[0]}/{name}", SMALL_FILE_BYTES_MAX))
    assert paths(start(machine)) == [f"{LOG}/{name}"]


def paths(events: list[object]) -> list[str]:
    return [each.path for each in events if isinstance(each, FileNotUsed)]


@pytest.mark.parametrize(
    "name", [".clean_shutdown", "whole-since", "recovery-point-offset-checkpoint", "replication-offset-checkpoint"]
)
def test_a_start_reports_each_file_of_the_directory_that_it_does_not_use(machine: Machine, name: str) -> None:
    written(machine)
    machine.disk().replace_file(f"{PATH}/{name}", b"garbage")
    assert f"{PATH}/{name}" in paths(start(machine))
