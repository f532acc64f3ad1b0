"""The simulated world reports what its ZooKeeper, its disks and its faults do, at the moment when they do it."""

import asyncio

import pytest
from msgspec import Struct

from minibroker.runtime.ports import CreateOp, DeleteOp, DiskFull, Operation, OutOfDescriptors, Runtime, SetOp
from minibroker.simulation.world.observations import (
    AnswerArrived,
    DeletedNode,
    DiskCallFailed,
    NodesWritten,
    ProcessPaused,
    ProcessResumed,
    RequestReceived,
    RequestSent,
    SessionCutShort,
    SessionEnded,
)
from minibroker.simulation.world.world import SimulatedWorld

KINDS: tuple[type[Struct], ...] = (
    AnswerArrived,
    DiskCallFailed,
    NodesWritten,
    ProcessPaused,
    ProcessResumed,
    RequestReceived,
    RequestSent,
    SessionCutShort,
    SessionEnded,
)


class Life:
    """A world with one machine, and what the world reported."""

    def __init__(self) -> None:
        self.world = SimulatedWorld(1)
        self.reports: list[Struct] = []
        for kind in KINDS:
            self.world.world_observers.subscribe(kind, self.reports.append)


def test_a_write_is_reported_with_the_nodes_that_it_deletes() -> None:
    life = Life()
    tree = life.world.zookeeper.tree
    tree.transact([CreateOp(path="/a", data=b"1"), CreateOp(path="/b", data=b"2")], 5)
    before = tree.nodes["/a"]
    operations: list[Operation] = [DeleteOp(path="/a"), CreateOp(path="/a", data=b"3"), SetOp(path="/b", data=b"4")]
    tree.transact(operations, 6)
    report = life.reports[-1]
    assert report == NodesWritten(operations, 6, {"/a": DeletedNode(b"1", before.czxid, 0)})
    assert tree.nodes["/a"] is not before


def is_about_a_read(report: Struct) -> bool:
    return isinstance(report, RequestSent | RequestReceived | AnswerArrived) and report.kind != "write"


def test_a_request_its_answer_and_the_end_of_a_session_are_reported() -> None:
    life = Life()

    async def program(runtime: Runtime) -> None:
        coordination = runtime.open_coordination("zookeeper:2181", 3_000)
        await coordination.start()
        await coordination.create("/mine", b"", ephemeral=True)
        await asyncio.sleep(60)

    async def main() -> None:
        life.world.start("broker-1", program)
        await asyncio.sleep(1)
        [session_id] = life.world.zookeeper.sessions_of("broker-1")
        life.world.zookeeper.expire_session(session_id)

    life.world.run(main())
    reports = [report for report in life.reports if not is_about_a_read(report)]
    assert [type(report) for report in reports] == [
        RequestSent,
        RequestReceived,
        NodesWritten,
        AnswerArrived,
        SessionCutShort,
        SessionEnded,
    ]
    answer = reports[3]
    assert isinstance(answer, AnswerArrived) and (answer.host, answer.error) == ("broker-1", None)
    assert answer.is_awaited
    assert reports[5] == SessionEnded(["/mine"])


def test_a_failed_disk_call_and_a_want_of_descriptors_are_reported() -> None:
    life = Life()
    storage = life.world.machine("broker-1").storage
    storage.fail("append", "/data/a", times=1, is_full=True)
    with pytest.raises(DiskFull):
        storage.check_fault("append", "/data/a")
    storage.check_fault("append", "/data/a")
    life.world.take_descriptors("broker-1")
    with pytest.raises(OutOfDescriptors):
        storage.check_descriptor("open", "/data/b")
    found = [(each.call, each.path, type(each.error)) for each in life.reports if isinstance(each, DiskCallFailed)]
    assert found == [("append", "/data/a", DiskFull), ("open", "/data/b", OutOfDescriptors)]


def test_a_pause_and_its_end_are_reported() -> None:
    life = Life()
    life.world.process("broker-1")
    life.world.pause("broker-1")
    life.world.resume("broker-1")
    assert life.reports == [ProcessPaused("broker-1"), ProcessResumed("broker-1")]
