"""The coordination door: ephemerals, versions and transactions where sessions and nodes end and begin anew."""

import asyncio
import gc

import pytest

from minibroker.runtime.ports import (
    BadVersion,
    CheckOp,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    SetOp,
    Stat,
)
from tests.runtime.coordination import Coordinations, Fired, conformance
from tests.runtime.ports import settle


@conformance
async def test_a_node_that_is_created_anew_begins_with_version_0_and_another_creation(doors: Coordinations) -> None:
    path, first = await doors.subject.create(f"{doors.root}/a", b"1")
    await doors.subject.set(path, b"2")
    await doors.subject.delete(path, version=1)
    _, second = await doors.subject.create(path, b"3")
    assert second.version == 0
    assert second.czxid > first.czxid
    with pytest.raises(BadVersion):
        await doors.subject.set(path, b"late", version=1)


@conformance
async def test_an_ephemeral_node_names_its_owner_and_a_persistent_one_none(doors: Coordinations) -> None:
    _, mine = await doors.subject.create(f"{doors.root}/mine", b"", ephemeral=True)
    _, lasting = await doors.subject.create(f"{doors.root}/lasting", b"")
    assert mine.ephemeral_owner == doors.subject.session_id != 0
    assert lasting.ephemeral_owner == 0
    seen = await doors.observer.exists(f"{doors.root}/mine")
    assert seen is not None
    assert seen.ephemeral_owner == doors.subject.session_id


@conformance
async def test_others_may_write_and_delete_an_ephemeral_node(doors: Coordinations) -> None:
    path, _ = await doors.subject.create(f"{doors.root}/mine", b"", ephemeral=True)
    stat = await doors.observer.set(path, b"yours", version=0)
    assert stat.ephemeral_owner == doors.subject.session_id
    await doors.observer.delete(path, version=1)
    assert await doors.subject.exists(path) is None


@conformance
async def test_an_ephemeral_node_of_another_session_stands_in_the_way(doors: Coordinations) -> None:
    path, _ = await doors.observer.create(f"{doors.root}/controller", b"other", ephemeral=True)
    with pytest.raises(NodeExists):
        await doors.subject.create(path, b"me", ephemeral=True)
    assert (await doors.subject.get(path))[0] == b"other"


@conformance
async def test_a_transaction_sees_its_own_earlier_steps(doors: Coordinations) -> None:
    path = f"{doors.root}/a"
    results = await doors.subject.multi(
        [
            CreateOp(path=path, data=b"1"),
            CheckOp(path=path, version=0),
            SetOp(path=path, data=b"2", version=0),
            CheckOp(path=path, version=1),
            DeleteOp(path=path, version=1),
            CreateOp(path=path, data=b"3"),
        ]
    )
    assert isinstance(results[2], Stat)
    data, stat = await doors.observer.get(path)
    assert (data, stat.version) == (b"3", 0)


@conformance
async def test_all_of_a_transaction_carries_one_transaction_id(doors: Coordinations) -> None:
    _, before = await doors.subject.create(f"{doors.root}/before", b"")
    await doors.subject.multi([CreateOp(path=f"{doors.root}/{name}", data=b"") for name in "ab"])
    stats = [await doors.observer.exists(f"{doors.root}/{name}") for name in "ab"]
    assert stats[0] is not None
    assert stats[1] is not None
    assert stats[0].czxid == stats[1].czxid > before.czxid


@conformance
async def test_a_check_of_a_missing_node_fails_and_one_of_any_version_passes(doors: Coordinations) -> None:
    with pytest.raises(NoNode) as caught:
        await doors.subject.multi([CheckOp(path=f"{doors.root}/none", version=0)])
    assert caught.value.index == 0
    assert await doors.subject.multi([CheckOp(path=doors.root, version=-1)]) == [None]


@conformance
async def test_of_two_writers_of_one_version_one_wins(doors: Coordinations) -> None:
    path, _ = await doors.subject.create(f"{doors.root}/a", b"")
    results = await asyncio.gather(
        doors.subject.set(path, b"mine", version=0),
        doors.observer.set(path, b"theirs", version=0),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["BadVersion", "Stat"]
    winner = b"mine" if isinstance(results[0], Stat) else b"theirs"
    data, stat = await doors.observer.get(path)
    assert (data, stat.version) == (winner, 1)


@conformance
async def test_sequence_numbers_follow_on_from_deleted_ones_also_of_ephemerals(doors: Coordinations) -> None:
    first, _ = await doors.subject.create(f"{doors.root}/s-", b"", sequence=True, ephemeral=True)
    await doors.subject.delete(first)
    second, stat = await doors.subject.create(f"{doors.root}/s-", b"", sequence=True, ephemeral=True)
    assert second > first
    assert stat.ephemeral_owner == doors.subject.session_id


@conformance
async def test_bytes_of_a_node_come_back_whatever_they_are(doors: Coordinations) -> None:
    for data in (b"", b"\0", bytes(range(256)) * 100):
        path, _ = await doors.subject.create(f"{doors.root}/data", data)
        assert (await doors.observer.get(path))[0] == data
        await doors.subject.delete(path)


@conformance
async def test_a_watch_of_existence_fires_on_data_and_on_deletion_once(doors: Coordinations) -> None:
    path, _ = await doors.subject.create(f"{doors.root}/a", b"")
    of_data, of_deletion = Fired(doors), Fired(doors)
    await doors.subject.exists(path, of_data)
    await doors.observer.set(path, b"1")
    await of_data.until_fired()
    await doors.subject.exists(path, of_deletion)
    await doors.observer.delete(path)
    await of_deletion.until_fired()
    await doors.observer.create(path, b"")
    await settle(0.2)
    assert (of_data.times, of_deletion.times) == (1, 1)


@conformance
async def test_ephemerals_of_an_ended_session_fire_watches_on_node_and_parent(doors: Coordinations) -> None:
    path, _ = await doors.subject.create(f"{doors.root}/mine", b"", ephemeral=True)
    of_node, of_parent = Fired(doors), Fired(doors)
    await doors.observer.exists(path, of_node)
    assert await doors.observer.get_children(doors.root, of_parent) == ["mine"]
    await doors.subject.close()
    await of_node.until_fired()
    await of_parent.until_fired()
    assert await doors.observer.get_children(doors.root) == []


@conformance
async def test_calls_leave_no_cycles_behind(doors: Coordinations) -> None:
    """A heartbeat a second for months, and a collector that seldom looks: what is answered is freed at once."""
    await doors.subject.exists("/")
    await settle()
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            await doors.subject.exists("/")
        await settle()
        left = [item for item in gc.get_objects() if type(item).__name__ == "AsyncResult"]
        assert len(left) < 10
    finally:
        gc.enable()
