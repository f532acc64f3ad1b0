"""The coordination port: ephemeral nodes, versions and transactions when sessions and nodes end and begin again."""

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
async def test_a_node_created_again_has_version_0_and_another_creation_id(ports: Coordinations) -> None:
    path, first = await ports.subject.create(f"{ports.root}/a", b"1")
    await ports.subject.set(path, b"2")
    await ports.subject.delete(path, version=1)
    _, second = await ports.subject.create(path, b"3")
    assert second.version == 0
    assert second.czxid > first.czxid
    with pytest.raises(BadVersion):
        await ports.subject.set(path, b"late", version=1)


@conformance
async def test_an_ephemeral_node_names_its_owner_and_a_persistent_one_none(ports: Coordinations) -> None:
    _, mine = await ports.subject.create(f"{ports.root}/mine", b"", ephemeral=True)
    _, lasting = await ports.subject.create(f"{ports.root}/lasting", b"")
    assert mine.ephemeral_owner == ports.subject.session_id != 0
    assert lasting.ephemeral_owner == 0
    seen = await ports.observer.exists(f"{ports.root}/mine")
    assert seen is not None
    assert seen.ephemeral_owner == ports.subject.session_id


@conformance
async def test_others_may_write_and_delete_an_ephemeral_node(ports: Coordinations) -> None:
    path, _ = await ports.subject.create(f"{ports.root}/mine", b"", ephemeral=True)
    stat = await ports.observer.set(path, b"yours", version=0)
    assert stat.ephemeral_owner == ports.subject.session_id
    await ports.observer.delete(path, version=1)
    assert await ports.subject.exists(path) is None


@conformance
async def test_an_ephemeral_node_of_another_session_cannot_be_created_again(ports: Coordinations) -> None:
    path, _ = await ports.observer.create(f"{ports.root}/controller", b"other", ephemeral=True)
    with pytest.raises(NodeExists):
        await ports.subject.create(path, b"me", ephemeral=True)
    assert (await ports.subject.get(path))[0] == b"other"


@conformance
async def test_a_transaction_sees_its_own_earlier_steps(ports: Coordinations) -> None:
    path = f"{ports.root}/a"
    results = await ports.subject.multi(
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
    data, stat = await ports.observer.get(path)
    assert (data, stat.version) == (b"3", 0)


@conformance
async def test_all_of_a_transaction_carries_one_transaction_id(ports: Coordinations) -> None:
    _, before = await ports.subject.create(f"{ports.root}/before", b"")
    await ports.subject.multi([CreateOp(path=f"{ports.root}/{name}", data=b"") for name in "ab"])
    stats = [await ports.observer.exists(f"{ports.root}/{name}") for name in "ab"]
    assert stats[0] is not None
    assert stats[1] is not None
    assert stats[0].czxid == stats[1].czxid > before.czxid


@conformance
async def test_a_check_of_a_missing_node_fails_and_one_of_any_version_passes(ports: Coordinations) -> None:
    with pytest.raises(NoNode) as caught:
        await ports.subject.multi([CheckOp(path=f"{ports.root}/none", version=0)])
    assert caught.value.index == 0
    assert await ports.subject.multi([CheckOp(path=ports.root, version=-1)]) == [None]


@conformance
async def test_of_two_writers_of_one_version_one_wins(ports: Coordinations) -> None:
    path, _ = await ports.subject.create(f"{ports.root}/a", b"")
    results = await asyncio.gather(
        ports.subject.set(path, b"mine", version=0),
        ports.observer.set(path, b"theirs", version=0),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["BadVersion", "Stat"]
    winner = b"mine" if isinstance(results[0], Stat) else b"theirs"
    data, stat = await ports.observer.get(path)
    assert (data, stat.version) == (winner, 1)


@conformance
async def test_sequence_numbers_follow_on_from_deleted_ones_also_of_ephemerals(ports: Coordinations) -> None:
    first, _ = await ports.subject.create(f"{ports.root}/s-", b"", sequence=True, ephemeral=True)
    await ports.subject.delete(first)
    second, stat = await ports.subject.create(f"{ports.root}/s-", b"", sequence=True, ephemeral=True)
    assert second > first
    assert stat.ephemeral_owner == ports.subject.session_id


@conformance
async def test_bytes_of_a_node_come_back_whatever_they_are(ports: Coordinations) -> None:
    for data in (b"", b"\0", bytes(range(256)) * 100):
        path, _ = await ports.subject.create(f"{ports.root}/data", data)
        assert (await ports.observer.get(path))[0] == data
        await ports.subject.delete(path)


@conformance
async def test_a_watch_of_existence_fires_on_data_and_on_deletion_once(ports: Coordinations) -> None:
    path, _ = await ports.subject.create(f"{ports.root}/a", b"")
    of_data, of_deletion = Fired(ports), Fired(ports)
    await ports.subject.exists(path, of_data)
    await ports.observer.set(path, b"1")
    await of_data.until_fired()
    await ports.subject.exists(path, of_deletion)
    await ports.observer.delete(path)
    await of_deletion.until_fired()
    await ports.observer.create(path, b"")
    await settle(0.2)
    assert (of_data.times, of_deletion.times) == (1, 1)


@conformance
async def test_ephemerals_of_an_ended_session_fire_watches_on_node_and_parent(ports: Coordinations) -> None:
    path, _ = await ports.subject.create(f"{ports.root}/mine", b"", ephemeral=True)
    of_node, of_parent = Fired(ports), Fired(ports)
    await ports.observer.exists(path, of_node)
    assert await ports.observer.get_children(ports.root, of_parent) == ["mine"]
    await ports.subject.close()
    await of_node.until_fired()
    await of_parent.until_fired()
    assert await ports.observer.get_children(ports.root) == []


@conformance
async def test_calls_leave_no_cycles_behind(ports: Coordinations) -> None:
    """A heartbeat a second for months, and the collector runs rarely: answered calls must be freed at once."""
    await ports.subject.exists("/")
    await settle()
    gc.disable()
    gc.freeze()  # a collection of all that a long test run holds takes longer than a session lasts
    try:
        for _ in range(20):
            await ports.subject.exists("/")
        await settle()
        left = [item for item in gc.get_objects() if type(item).__name__ == "AsyncResult"]
        assert len(left) < 10
    finally:
        gc.unfreeze()
        gc.enable()
