"""The coordination port: ZooKeeper's answers, on the real one and on the simulated one."""

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
async def test_created_node_is_read_back(ports: Coordinations) -> None:
    path, stat = await ports.subject.create(f"{ports.root}/a", b"data")
    assert path == f"{ports.root}/a"
    assert await ports.observer.get(path) == (b"data", stat)
    assert stat.version == 0
    assert stat.ephemeral_owner == 0
    assert stat.czxid == stat.mzxid > 0


@conformance
async def test_a_stat_counts_the_children(ports: Coordinations) -> None:
    path, created = await ports.subject.create(f"{ports.root}/a", b"")
    assert created.num_children == 0
    for name in ("b", "c", "d"):
        await ports.observer.create(f"{path}/{name}", b"")
    await ports.observer.create(f"{path}/b/below", b"")
    await ports.observer.delete(f"{path}/d")
    found = await ports.subject.exists(path)
    assert found is not None and found.num_children == 2
    assert (await ports.subject.get(path))[1] == found


@conformance
async def test_later_nodes_have_higher_transaction_ids(ports: Coordinations) -> None:
    _, first = await ports.subject.create(f"{ports.root}/a", b"")
    _, second = await ports.observer.create(f"{ports.root}/b", b"")
    await ports.observer.delete(f"{ports.root}/a")
    _, third = await ports.subject.create(f"{ports.root}/a", b"")
    assert first.czxid < second.czxid < third.czxid


@conformance
async def test_set_raises_the_version_and_keeps_the_creation(ports: Coordinations) -> None:
    path, created = await ports.subject.create(f"{ports.root}/a", b"0")
    changed = await ports.subject.set(path, b"1", version=0)
    assert changed.version == 1
    assert changed.czxid == created.czxid < changed.mzxid
    assert (await ports.subject.set(path, b"2")).version == 2
    assert (await ports.observer.get(path))[0] == b"2"


@conformance
async def test_wrong_version_is_refused(ports: Coordinations) -> None:
    path, _ = await ports.subject.create(f"{ports.root}/a", b"0")
    with pytest.raises(BadVersion):
        await ports.subject.set(path, b"1", version=1)
    with pytest.raises(BadVersion):
        await ports.subject.delete(path, version=1)
    assert (await ports.subject.get(path))[0] == b"0"
    await ports.subject.delete(path, version=0)
    assert await ports.subject.exists(path) is None


@conformance
async def test_missing_nodes_are_an_error(ports: Coordinations) -> None:
    missing = f"{ports.root}/missing"
    with pytest.raises(NoNode):
        await ports.subject.get(missing)
    with pytest.raises(NoNode):
        await ports.subject.get_children(missing)
    with pytest.raises(NoNode):
        await ports.subject.set(missing, b"")
    with pytest.raises(NoNode):
        await ports.subject.delete(missing)
    with pytest.raises(NoNode):
        await ports.subject.create(f"{missing}/child", b"")
    assert await ports.subject.exists(missing) is None


@conformance
async def test_existing_node_is_not_created_again(ports: Coordinations) -> None:
    path, _ = await ports.observer.create(f"{ports.root}/a", b"first")
    with pytest.raises(NodeExists):
        await ports.subject.create(path, b"second")
    assert (await ports.subject.get(path))[0] == b"first"


@conformance
async def test_parents_are_made_when_asked_for(ports: Coordinations) -> None:
    await ports.observer.create(f"{ports.root}/a", b"kept")
    path, _ = await ports.subject.create(f"{ports.root}/a/b/c", b"deep", make_parents=True)
    assert (await ports.observer.get(path))[0] == b"deep"
    assert (await ports.observer.get(f"{ports.root}/a"))[0] == b"kept"
    with pytest.raises(NodeExists):
        await ports.subject.create(path, b"again", make_parents=True)


@conformance
async def test_node_with_children_is_not_deleted(ports: Coordinations) -> None:
    await ports.subject.create(f"{ports.root}/a/b", b"", make_parents=True)
    with pytest.raises(NotEmpty):
        await ports.subject.delete(f"{ports.root}/a")


@conformance
async def test_children_are_sorted_names(ports: Coordinations) -> None:
    for name in ("b", "c", "a"):
        await ports.subject.create(f"{ports.root}/{name}", b"")
    assert await ports.observer.get_children(ports.root) == ["a", "b", "c"]


@conformance
async def test_sequence_numbers_count_all_children_ever_created(ports: Coordinations) -> None:
    await ports.subject.create(f"{ports.root}/plain", b"")
    first, _ = await ports.subject.create(f"{ports.root}/s-", b"", sequence=True)
    await ports.subject.delete(first)
    second, stat = await ports.observer.create(f"{ports.root}/s-", b"x", sequence=True, ephemeral=True)
    assert (first, second) == (f"{ports.root}/s-0000000001", f"{ports.root}/s-0000000002")
    assert stat.ephemeral_owner == ports.observer.session_id


@conformance
async def test_ephemeral_node_vanishes_at_once_when_its_owner_closes(ports: Coordinations) -> None:
    path, stat = await ports.subject.create(f"{ports.root}/me", b"", ephemeral=True)
    assert stat.ephemeral_owner == ports.subject.session_id != 0
    gone = Fired(ports)
    await ports.observer.exists(path, gone)
    await ports.subject.close()
    await gone.until_fired(seconds=1)
    assert await ports.observer.exists(path) is None


@conformance
async def test_ephemeral_node_has_no_children(ports: Coordinations) -> None:
    path, _ = await ports.subject.create(f"{ports.root}/me", b"", ephemeral=True)
    with pytest.raises(CoordinationError):
        await ports.subject.create(f"{path}/child", b"")


# ------------------------------------------------------------------------------------------------------- multi
@conformance
async def test_multi_does_all_and_returns_each_result(ports: Coordinations) -> None:
    path, created = await ports.subject.create(f"{ports.root}/a", b"0")
    doomed, _ = await ports.subject.create(f"{ports.root}/doomed", b"")
    results = await ports.subject.multi(
        [
            CheckOp(path=path, version=0),
            SetOp(path=path, data=b"1", version=0),
            CreateOp(path=f"{ports.root}/new", data=b"n"),
            CreateOp(path=f"{ports.root}/new/s-", data=b"", sequence=True, ephemeral=True),
            DeleteOp(path=doomed),
        ]
    )
    changed = results[1]
    assert isinstance(changed, Stat)
    assert (changed.version, changed.czxid) == (1, created.czxid)
    assert results == [None, changed, f"{ports.root}/new", f"{ports.root}/new/s-0000000000", None]
    assert await ports.observer.get_children(ports.root) == ["a", "new"]
    _, stat = await ports.observer.get(f"{ports.root}/new")
    assert stat.czxid == changed.mzxid


@conformance
async def test_failed_multi_does_nothing_and_names_the_failed_operation(ports: Coordinations) -> None:
    path, _ = await ports.subject.create(f"{ports.root}/a", b"0")
    before: list[Operation] = [
        CreateOp(path=f"{ports.root}/new", data=b""),
        SetOp(path=path, data=b"1"),
        CreateOp(path=f"{ports.root}/new/s-", data=b"", sequence=True),
    ]
    culprits: list[tuple[Operation, type[CoordinationError]]] = [
        (CheckOp(path=path, version=7), BadVersion),
        (SetOp(path=path, data=b"", version=7), BadVersion),
        (CreateOp(path=path, data=b""), NodeExists),
        (CreateOp(path=f"{ports.root}/no/where", data=b""), NoNode),
        (DeleteOp(path=f"{ports.root}/new"), NotEmpty),
    ]
    for culprit, error in culprits:
        with pytest.raises(error) as caught:
            await ports.subject.multi([*before, culprit, DeleteOp(path=path)])
        assert caught.value.index == 3
    assert await ports.observer.get_children(ports.root) == ["a"]
    data, stat = await ports.observer.get(path)
    assert (data, stat.version) == (b"0", 0)
    assert (await ports.subject.create(f"{ports.root}/s-", b"", sequence=True))[0].endswith("s-0000000001")


@conformance
async def test_errors_of_single_calls_have_no_index(ports: Coordinations) -> None:
    with pytest.raises(NoNode) as caught:
        await ports.subject.set(f"{ports.root}/missing", b"")
    assert caught.value.index is None


@conformance
async def test_empty_multi_is_nothing(ports: Coordinations) -> None:
    assert await ports.subject.multi([]) == []


# ----------------------------------------------------------------------------------------------------- watches
@conformance
async def test_watch_of_data_fires_once(ports: Coordinations) -> None:
    path, _ = await ports.observer.create(f"{ports.root}/a", b"0")
    fired = Fired(ports)
    await ports.subject.get(path, fired)
    await ports.observer.set(path, b"1")
    await fired.until_fired()
    await ports.observer.set(path, b"2")
    await ports.observer.delete(path)
    await settle(0.05)
    assert fired.times == 1


@conformance
async def test_watch_of_data_fires_on_deletion(ports: Coordinations) -> None:
    path, _ = await ports.observer.create(f"{ports.root}/a", b"0")
    by_get, by_exists = Fired(ports), Fired(ports)
    await ports.subject.get(path, by_get)
    await ports.subject.exists(path, by_exists)
    await ports.observer.delete(path)
    await by_get.until_fired()
    await by_exists.until_fired()


@conformance
async def test_watch_of_a_missing_node_fires_on_creation(ports: Coordinations) -> None:
    fired = Fired(ports)
    assert await ports.subject.exists(f"{ports.root}/a", fired) is None
    await ports.observer.create(f"{ports.root}/a", b"")
    await fired.until_fired()


@conformance
async def test_get_of_a_missing_node_leaves_no_watch(ports: Coordinations) -> None:
    by_get, by_children = Fired(ports), Fired(ports)
    with pytest.raises(NoNode):
        await ports.subject.get(f"{ports.root}/a", by_get)
    with pytest.raises(NoNode):
        await ports.subject.get_children(f"{ports.root}/a", by_children)
    await ports.observer.create(f"{ports.root}/a", b"")
    await ports.observer.create(f"{ports.root}/a/b", b"")
    await settle(0.05)
    assert by_get.times == by_children.times == 0


@conformance
async def test_watch_of_children_fires_on_creation_and_deletion_of_one(ports: Coordinations) -> None:
    for change in (ports.observer.create(f"{ports.root}/a", b""), ports.observer.delete(f"{ports.root}/a")):
        fired = Fired(ports)
        await ports.subject.get_children(ports.root, fired)
        await change
        await fired.until_fired()


@conformance
async def test_watch_of_children_ignores_data_and_grandchildren(ports: Coordinations) -> None:
    await ports.observer.create(f"{ports.root}/a", b"")
    fired = Fired(ports)
    await ports.subject.get_children(ports.root, fired)
    await ports.observer.set(ports.root, b"x")
    await ports.observer.set(f"{ports.root}/a", b"x")
    await ports.observer.create(f"{ports.root}/a/b", b"")
    await settle(0.05)
    assert fired.times == 0


@conformance
async def test_watch_of_data_ignores_children(ports: Coordinations) -> None:
    fired = Fired(ports)
    await ports.subject.get(ports.root, fired)
    await ports.observer.create(f"{ports.root}/a", b"")
    await settle(0.05)
    assert fired.times == 0


@conformance
async def test_watch_of_children_fires_when_the_node_itself_goes(ports: Coordinations) -> None:
    path, _ = await ports.observer.create(f"{ports.root}/a", b"")
    fired = Fired(ports)
    await ports.subject.get_children(path, fired)
    await ports.observer.delete(path)
    await fired.until_fired()


@conformance
async def test_own_writes_fire_own_watches(ports: Coordinations) -> None:
    path, _ = await ports.subject.create(f"{ports.root}/a", b"0")
    fired = Fired(ports)
    await ports.subject.get(path, fired)
    await ports.subject.set(path, b"1")
    assert fired.times == 1, "the event comes before the answer"


@conformance
async def test_multi_fires_watches(ports: Coordinations) -> None:
    fired = Fired(ports)
    await ports.subject.get_children(ports.root, fired)
    await ports.observer.multi([CreateOp(path=f"{ports.root}/a", data=b"")])
    await fired.until_fired()


@conformance
async def test_failed_multi_fires_none(ports: Coordinations) -> None:
    fired = Fired(ports)
    await ports.subject.get_children(ports.root, fired)
    with pytest.raises(NoNode):
        await ports.observer.multi([CreateOp(path=f"{ports.root}/a", data=b""), DeleteOp(path=f"{ports.root}/b")])
    await settle(0.05)
    assert fired.times == 0


@conformance
async def test_watch_fires_before_the_new_data_can_be_read(ports: Coordinations) -> None:
    path, _ = await ports.observer.create(f"{ports.root}/a", b"0")
    for number in range(1, 20):
        fired = Fired(ports)
        await ports.subject.get(path, fired)
        write = asyncio.ensure_future(ports.observer.set(path, b"%d" % number))
        while (await ports.subject.get(path))[0] != b"%d" % number:
            pass
        assert fired.times == 1
        await write


@conformance
async def test_every_call_with_a_watch_has_its_own(ports: Coordinations) -> None:
    fired = Fired(ports)
    await ports.subject.get(ports.root, fired)
    await ports.subject.get(ports.root, fired)
    await ports.observer.set(ports.root, b"x")
    await ports.until(lambda: fired.times == 2)
