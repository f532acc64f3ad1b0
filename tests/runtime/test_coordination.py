"""The coordination door: what ZooKeeper answers, on the real one and on the simulated one."""

import asyncio

import pytest

from minibroker.runtime.ports import (
    BadVersion,
    CheckOp,
    CoordinationError,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SetOp,
    Stat,
)
from tests.runtime.coordination import Coordinations, Fired, conformance
from tests.runtime.ports import settle


@conformance
async def test_created_node_is_read_back(doors: Coordinations) -> None:
    path, stat = await doors.subject.create(f"{doors.root}/a", b"data")
    assert path == f"{doors.root}/a"
    assert await doors.observer.get(path) == (b"data", stat)
    assert stat.version == 0
    assert stat.ephemeral_owner == 0
    assert stat.czxid == stat.mzxid > 0


@conformance
async def test_later_nodes_have_higher_transaction_ids(doors: Coordinations) -> None:
    _, first = await doors.subject.create(f"{doors.root}/a", b"")
    _, second = await doors.observer.create(f"{doors.root}/b", b"")
    await doors.observer.delete(f"{doors.root}/a")
    _, third = await doors.subject.create(f"{doors.root}/a", b"")
    assert first.czxid < second.czxid < third.czxid


@conformance
async def test_set_raises_the_version_and_keeps_the_creation(doors: Coordinations) -> None:
    path, created = await doors.subject.create(f"{doors.root}/a", b"0")
    changed = await doors.subject.set(path, b"1", version=0)
    assert changed.version == 1
    assert changed.czxid == created.czxid < changed.mzxid
    assert (await doors.subject.set(path, b"2")).version == 2
    assert (await doors.observer.get(path))[0] == b"2"


@conformance
async def test_wrong_version_is_refused(doors: Coordinations) -> None:
    path, _ = await doors.subject.create(f"{doors.root}/a", b"0")
    with pytest.raises(BadVersion):
        await doors.subject.set(path, b"1", version=1)
    with pytest.raises(BadVersion):
        await doors.subject.delete(path, version=1)
    assert (await doors.subject.get(path))[0] == b"0"
    await doors.subject.delete(path, version=0)
    assert await doors.subject.exists(path) is None


@conformance
async def test_missing_nodes_are_told(doors: Coordinations) -> None:
    missing = f"{doors.root}/missing"
    with pytest.raises(NoNode):
        await doors.subject.get(missing)
    with pytest.raises(NoNode):
        await doors.subject.get_children(missing)
    with pytest.raises(NoNode):
        await doors.subject.set(missing, b"")
    with pytest.raises(NoNode):
        await doors.subject.delete(missing)
    with pytest.raises(NoNode):
        await doors.subject.create(f"{missing}/child", b"")
    assert await doors.subject.exists(missing) is None


@conformance
async def test_existing_node_is_not_created_again(doors: Coordinations) -> None:
    path, _ = await doors.observer.create(f"{doors.root}/a", b"first")
    with pytest.raises(NodeExists):
        await doors.subject.create(path, b"second")
    assert (await doors.subject.get(path))[0] == b"first"


@conformance
async def test_parents_are_made_when_asked_for(doors: Coordinations) -> None:
    await doors.observer.create(f"{doors.root}/a", b"kept")
    path, _ = await doors.subject.create(f"{doors.root}/a/b/c", b"deep", make_parents=True)
    assert (await doors.observer.get(path))[0] == b"deep"
    assert (await doors.observer.get(f"{doors.root}/a"))[0] == b"kept"
    with pytest.raises(NodeExists):
        await doors.subject.create(path, b"again", make_parents=True)


@conformance
async def test_node_with_children_is_not_deleted(doors: Coordinations) -> None:
    await doors.subject.create(f"{doors.root}/a/b", b"", make_parents=True)
    with pytest.raises(NotEmpty):
        await doors.subject.delete(f"{doors.root}/a")


@conformance
async def test_children_are_sorted_names(doors: Coordinations) -> None:
    for name in ("b", "c", "a"):
        await doors.subject.create(f"{doors.root}/{name}", b"")
    assert await doors.observer.get_children(doors.root) == ["a", "b", "c"]


@conformance
async def test_sequence_numbers_count_all_children_ever_created(doors: Coordinations) -> None:
    await doors.subject.create(f"{doors.root}/plain", b"")
    first, _ = await doors.subject.create(f"{doors.root}/s-", b"", sequence=True)
    await doors.subject.delete(first)
    second, stat = await doors.observer.create(f"{doors.root}/s-", b"x", sequence=True, ephemeral=True)
    assert (first, second) == (f"{doors.root}/s-0000000001", f"{doors.root}/s-0000000002")
    assert stat.ephemeral_owner == doors.observer.session_id


@conformance
async def test_ephemeral_node_vanishes_at_once_when_its_owner_closes(doors: Coordinations) -> None:
    path, stat = await doors.subject.create(f"{doors.root}/me", b"", ephemeral=True)
    assert stat.ephemeral_owner == doors.subject.session_id != 0
    gone = Fired(doors)
    await doors.observer.exists(path, gone)
    await doors.subject.close()
    await gone.until_fired(seconds=1)
    assert await doors.observer.exists(path) is None


@conformance
async def test_ephemeral_node_has_no_children(doors: Coordinations) -> None:
    path, _ = await doors.subject.create(f"{doors.root}/me", b"", ephemeral=True)
    with pytest.raises(CoordinationError):
        await doors.subject.create(f"{path}/child", b"")


# ------------------------------------------------------------------------------------------------------- multi
@conformance
async def test_multi_does_all_and_tells_each_result(doors: Coordinations) -> None:
    path, created = await doors.subject.create(f"{doors.root}/a", b"0")
    doomed, _ = await doors.subject.create(f"{doors.root}/doomed", b"")
    results = await doors.subject.multi(
        [
            CheckOp(path=path, version=0),
            SetOp(path=path, data=b"1", version=0),
            CreateOp(path=f"{doors.root}/new", data=b"n"),
            CreateOp(path=f"{doors.root}/new/s-", data=b"", sequence=True, ephemeral=True),
            DeleteOp(path=doomed),
        ]
    )
    changed = results[1]
    assert isinstance(changed, Stat)
    assert (changed.version, changed.czxid) == (1, created.czxid)
    assert results == [None, changed, f"{doors.root}/new", f"{doors.root}/new/s-0000000000", None]
    assert await doors.observer.get_children(doors.root) == ["a", "new"]
    _, stat = await doors.observer.get(f"{doors.root}/new")
    assert stat.czxid == changed.mzxid


@conformance
async def test_failed_multi_does_nothing_and_names_the_culprit(doors: Coordinations) -> None:
    path, _ = await doors.subject.create(f"{doors.root}/a", b"0")
    before: list[Operation] = [
        CreateOp(path=f"{doors.root}/new", data=b""),
        SetOp(path=path, data=b"1"),
        CreateOp(path=f"{doors.root}/new/s-", data=b"", sequence=True),
    ]
    culprits: list[tuple[Operation, type[CoordinationError]]] = [
        (CheckOp(path=path, version=7), BadVersion),
        (SetOp(path=path, data=b"", version=7), BadVersion),
        (CreateOp(path=path, data=b""), NodeExists),
        (CreateOp(path=f"{doors.root}/no/where", data=b""), NoNode),
        (DeleteOp(path=f"{doors.root}/new"), NotEmpty),
    ]
    for culprit, error in culprits:
        with pytest.raises(error) as caught:
            await doors.subject.multi([*before, culprit, DeleteOp(path=path)])
        assert caught.value.index == 3
    assert await doors.observer.get_children(doors.root) == ["a"]
    data, stat = await doors.observer.get(path)
    assert (data, stat.version) == (b"0", 0)
    assert (await doors.subject.create(f"{doors.root}/s-", b"", sequence=True))[0].endswith("s-0000000001")


@conformance
async def test_errors_of_single_calls_have_no_index(doors: Coordinations) -> None:
    with pytest.raises(NoNode) as caught:
        await doors.subject.set(f"{doors.root}/missing", b"")
    assert caught.value.index is None


@conformance
async def test_empty_multi_is_nothing(doors: Coordinations) -> None:
    assert await doors.subject.multi([]) == []


# ----------------------------------------------------------------------------------------------------- watches
@conformance
async def test_watch_of_data_fires_once(doors: Coordinations) -> None:
    path, _ = await doors.observer.create(f"{doors.root}/a", b"0")
    fired = Fired(doors)
    await doors.subject.get(path, fired)
    await doors.observer.set(path, b"1")
    await fired.until_fired()
    await doors.observer.set(path, b"2")
    await doors.observer.delete(path)
    await settle(0.05)
    assert fired.times == 1


@conformance
async def test_watch_of_data_fires_on_deletion(doors: Coordinations) -> None:
    path, _ = await doors.observer.create(f"{doors.root}/a", b"0")
    by_get, by_exists = Fired(doors), Fired(doors)
    await doors.subject.get(path, by_get)
    await doors.subject.exists(path, by_exists)
    await doors.observer.delete(path)
    await by_get.until_fired()
    await by_exists.until_fired()


@conformance
async def test_watch_of_a_missing_node_fires_on_creation(doors: Coordinations) -> None:
    fired = Fired(doors)
    assert await doors.subject.exists(f"{doors.root}/a", fired) is None
    await doors.observer.create(f"{doors.root}/a", b"")
    await fired.until_fired()


@conformance
async def test_get_of_a_missing_node_leaves_no_watch(doors: Coordinations) -> None:
    by_get, by_children = Fired(doors), Fired(doors)
    with pytest.raises(NoNode):
        await doors.subject.get(f"{doors.root}/a", by_get)
    with pytest.raises(NoNode):
        await doors.subject.get_children(f"{doors.root}/a", by_children)
    await doors.observer.create(f"{doors.root}/a", b"")
    await doors.observer.create(f"{doors.root}/a/b", b"")
    await settle(0.05)
    assert by_get.times == by_children.times == 0


@conformance
async def test_watch_of_children_fires_on_creation_and_deletion_of_one(doors: Coordinations) -> None:
    for change in (doors.observer.create(f"{doors.root}/a", b""), doors.observer.delete(f"{doors.root}/a")):
        fired = Fired(doors)
        await doors.subject.get_children(doors.root, fired)
        await change
        await fired.until_fired()


@conformance
async def test_watch_of_children_ignores_data_and_grandchildren(doors: Coordinations) -> None:
    await doors.observer.create(f"{doors.root}/a", b"")
    fired = Fired(doors)
    await doors.subject.get_children(doors.root, fired)
    await doors.observer.set(doors.root, b"x")
    await doors.observer.set(f"{doors.root}/a", b"x")
    await doors.observer.create(f"{doors.root}/a/b", b"")
    await settle(0.05)
    assert fired.times == 0


@conformance
async def test_watch_of_data_ignores_children(doors: Coordinations) -> None:
    fired = Fired(doors)
    await doors.subject.get(doors.root, fired)
    await doors.observer.create(f"{doors.root}/a", b"")
    await settle(0.05)
    assert fired.times == 0


@conformance
async def test_watch_of_children_fires_when_the_node_itself_goes(doors: Coordinations) -> None:
    path, _ = await doors.observer.create(f"{doors.root}/a", b"")
    fired = Fired(doors)
    await doors.subject.get_children(path, fired)
    await doors.observer.delete(path)
    await fired.until_fired()


@conformance
async def test_own_writes_fire_own_watches(doors: Coordinations) -> None:
    path, _ = await doors.subject.create(f"{doors.root}/a", b"0")
    fired = Fired(doors)
    await doors.subject.get(path, fired)
    await doors.subject.set(path, b"1")
    assert fired.times == 1, "the event comes before the answer"


@conformance
async def test_multi_fires_watches(doors: Coordinations) -> None:
    fired = Fired(doors)
    await doors.subject.get_children(doors.root, fired)
    await doors.observer.multi([CreateOp(path=f"{doors.root}/a", data=b"")])
    await fired.until_fired()


@conformance
async def test_failed_multi_fires_none(doors: Coordinations) -> None:
    fired = Fired(doors)
    await doors.subject.get_children(doors.root, fired)
    with pytest.raises(NoNode):
        await doors.observer.multi([CreateOp(path=f"{doors.root}/a", data=b""), DeleteOp(path=f"{doors.root}/b")])
    await settle(0.05)
    assert fired.times == 0


@conformance
async def test_watch_fires_before_the_new_data_can_be_read(doors: Coordinations) -> None:
    path, _ = await doors.observer.create(f"{doors.root}/a", b"0")
    for number in range(1, 20):
        fired = Fired(doors)
        await doors.subject.get(path, fired)
        write = asyncio.ensure_future(doors.observer.set(path, b"%d" % number))
        while (await doors.subject.get(path))[0] != b"%d" % number:
            pass
        assert fired.times == 1
        await write


@conformance
async def test_every_call_with_a_watch_has_its_own(doors: Coordinations) -> None:
    fired = Fired(doors)
    await doors.subject.get(doors.root, fired)
    await doors.subject.get(doors.root, fired)
    await doors.observer.set(doors.root, b"x")
    await doors.until(lambda: fired.times == 2)
