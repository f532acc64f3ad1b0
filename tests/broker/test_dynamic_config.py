"""Settings that change while a broker runs."""

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.configuration.config import BrokerConfig, load_config
from minibroker.broker.configuration.config_values import BadValue
from minibroker.broker.configuration.dynamic_config import DynamicConfig, UnreadableSettings, accepted_broker_value
from minibroker.protocol.events.broker_events import NodeUnreadable, SettingsChanged
from minibroker.protocol.znodes import ConfigNode, broker_config_path
from minibroker.runtime.event_log import log_event
from minibroker.runtime.observer import Observers
from minibroker.runtime.ports import Coordination, CoordinationError, NotAuthorized, Stat, Watcher
from tests.broker.virtual_zookeeper import AskedCoordination, World, pass_time, run

PATH = broker_config_path(1)


def static_config(*settings: str) -> BrokerConfig:
    return load_config(None, ["broker.id=1", "log.dirs=/d", "zookeeper.connect=zk:2181", *settings])


class Watched:
    """A running DynamicConfig and the changes that it reported."""

    def __init__(self, dynamic: DynamicConfig) -> None:
        self.dynamic = dynamic
        self.changes: list[int] = []
        dynamic.on_change = lambda config: self.changes.append(config.min_insync_replicas)


async def watch(world: World, *settings: str) -> Watched:
    coordination = await world.connect(world.process("one"))
    watched = Watched(DynamicConfig(coordination, static_config(*settings), Observers(log_event)))
    await watched.dynamic.start()
    world.loop.create_task(watched.dynamic.run())
    return watched


async def write(observer: Coordination, **config: str) -> None:
    content = ConfigNode(config={name.replace("_", "."): value for name, value in config.items()}).encode()
    if await observer.exists(PATH) is None:
        await observer.create(PATH, content, make_parents=True)
    else:
        await observer.set(PATH, content)
    await pass_time(0.1)


def test_without_a_node_the_static_settings_hold() -> None:
    async def story(world: World) -> None:
        watched = await watch(world, "min.insync.replicas=2")
        assert watched.dynamic.current == watched.dynamic.static
        assert watched.changes == []

    run(story)


def test_an_existing_node_applies_from_the_start() -> None:
    async def story(world: World) -> None:
        await write(await world.observer(), min_insync_replicas="3")
        watched = await watch(world, "min.insync.replicas=2")
        assert watched.dynamic.current.min_insync_replicas == 3
        assert watched.dynamic.current.source("min.insync.replicas") == "ZooKeeper /config/brokers/1"
        assert watched.dynamic.overrides == {"min.insync.replicas": "3"}

    run(story)


def test_each_change_is_reported_and_removal_restores_the_static_value() -> None:
    async def story(world: World) -> None:
        observer = await world.observer()
        watched = await watch(world, "min.insync.replicas=2")
        await write(observer, min_insync_replicas="3")
        await write(observer, min_insync_replicas="4")
        await write(observer)
        await write(observer, min_insync_replicas="5")
        await observer.delete(PATH)
        await pass_time(0.1)
        assert watched.changes == [3, 4, 2, 5, 2]
        assert watched.dynamic.current == watched.dynamic.static

    run(story)


def test_a_node_that_is_removed_while_it_is_read_restores_the_static_values() -> None:
    async def story(world: World) -> None:
        observer = await world.observer()
        await write(observer, min_insync_replicas="3")
        watched = await watch(world)
        coordination, removed = watched.dynamic._coordination, list[str]()

        async def get(path: str) -> tuple[bytes, Stat]:
            if not removed:
                removed.append(path)
                await observer.delete(path)
            return await coordination.get(path)

        watched.dynamic._coordination = cast(Any, SimpleNamespace(exists=coordination.exists, get=get))
        await write(observer, min_insync_replicas="2")
        assert removed == [PATH]
        assert watched.dynamic.current == watched.dynamic.static

    run(story)


def test_change_during_an_outage_is_seen_afterwards() -> None:
    async def story(world: World) -> None:
        observer = await world.observer()
        watched = await watch(world)
        world.zookeeper.cut("one")
        await write(observer, min_insync_replicas="3")
        await pass_time(10)
        world.zookeeper.heal("one")
        await pass_time(5)
        assert watched.changes == [3]

    run(story)


def test_start_without_zookeeper_catches_up_later() -> None:
    async def story(world: World) -> None:
        await write(await world.observer(), min_insync_replicas="3")
        coordination = await world.connect(world.process("one"))
        dynamic = DynamicConfig(coordination, static_config())
        world.zookeeper.drop_connection("one")
        await pass_time(0.01)
        assert (await dynamic.start()).min_insync_replicas == 1
        world.loop.create_task(dynamic.run())
        await pass_time(3)
        assert dynamic.current.min_insync_replicas == 3

    run(story)


@pytest.mark.parametrize("failures", [1, 3])
def test_a_start_that_got_no_answer_reads_again_though_the_session_lives_on(failures: int) -> None:
    async def story(world: World) -> None:
        await write(await world.observer(), min_insync_replicas="3")
        asked = AskedCoordination(await world.connect(world.process("one")))
        asked.failures_left = failures
        dynamic = DynamicConfig(cast(Coordination, asked), static_config())
        assert (await dynamic.start()).min_insync_replicas == 1
        world.loop.create_task(dynamic.run())
        await pass_time(30)
        assert dynamic.current.min_insync_replicas == 3

    run(story)


@pytest.mark.parametrize("failure", [NotAuthorized("exists"), CoordinationError("exists: MarshallingError()")])
def test_settings_that_zookeeper_refuses_end_no_broker_and_are_read_later(failure: CoordinationError) -> None:
    """Another tool gave their node an ACL of its own. ZooKeeper tells no client when that is corrected."""
    reported: list[object] = []

    async def story(world: World) -> None:
        observer = await world.observer()
        asked = AskedCoordination(await world.connect(world.process("one")))
        dynamic = DynamicConfig(cast(Coordination, asked), static_config(), Observers(reported.append))
        await dynamic.start()
        running = world.loop.create_task(dynamic.run())
        asked.failures_left, asked.failure = 3, failure
        await write(observer, min_insync_replicas="3")
        await pass_time(60)
        assert not running.done()
        assert (dynamic.current.min_insync_replicas, asked.failures_left) == (3, 0)

    run(story)
    assert [type(each) for each in reported] == [NodeUnreadable, SettingsChanged]


def test_settings_that_zookeeper_refuses_for_long_leave_one_watch() -> None:
    """ZooKeeper's client keeps each watch until the node changes. Every attempt left another one: without end, as long
    as the right was missing."""
    reported: list[object] = []

    async def story(world: World) -> None:
        observer = await world.observer()
        await write(observer, min_insync_replicas="3")
        inner = await world.connect(world.process("one"))
        watchers, rights = list[object](), ["given"]

        async def exists(path: str, watcher: Watcher | None = None) -> object:
            watchers.append(watcher)
            return await inner.exists(path, watcher)

        async def get(path: str) -> object:
            if not rights:
                raise NotAuthorized(f"get {path}")
            return await inner.get(path)

        asked = SimpleNamespace(exists=exists, get=get, add_session_listener=inner.add_session_listener)
        dynamic = DynamicConfig(cast(Coordination, asked), static_config(), Observers(reported.append))
        await dynamic.start()
        running = world.loop.create_task(dynamic.run())
        rights.clear()
        await write(observer, min_insync_replicas="2")
        await pass_time(300)
        assert len([each for each in watchers if each is not None]) == 2
        rights.append("given")
        await pass_time(30)
        assert dynamic.current.min_insync_replicas == 2
        await write(observer, min_insync_replicas="1")
        await pass_time(1)
        assert dynamic.current.min_insync_replicas == 1
        assert not running.done()

    run(story)
    assert [each.reason for each in reported if isinstance(each, NodeUnreadable)] == [f"no right to get {PATH}"]


def test_a_broker_does_not_start_without_a_right_to_its_settings() -> None:
    async def story(world: World) -> None:
        asked = AskedCoordination(await world.connect(world.process("one")))
        asked.failures_left, asked.failure = 1, NotAuthorized(f"get {PATH}")
        with pytest.raises(UnreadableSettings, match=f"{PATH} .*give brokers the right to read it"):
            await DynamicConfig(cast(Coordination, asked), static_config()).start()

    run(story)


def test_zookeeper_is_read_for_a_change_and_not_again() -> None:
    """A broker that asked all the time would wear out the ZooKeeper of all."""

    async def story(world: World) -> None:
        observer = await world.observer()
        asked = AskedCoordination(await world.connect(world.process("one")))
        dynamic = DynamicConfig(cast(Coordination, asked), static_config())
        await dynamic.start()
        world.loop.create_task(dynamic.run())
        for value in ("3", "4"):
            await write(observer, min_insync_replicas=value)
            await pass_time(1)
            before = asked.reads
            await pass_time(60)
            assert asked.reads == before

    run(story)


def test_an_invalid_setting_is_skipped_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        observer = await world.observer()
        watched = await watch(world)
        await write(observer, min_insync_replicas="many", listeners="A://b:1", log_roll_ms="4")
        await write(observer, min_insync_replicas="many", listeners="A://b:1", log_roll_ms="5")
        assert watched.dynamic.current.log_roll_ms == 5
        assert watched.dynamic.current.min_insync_replicas == 1
        assert watched.dynamic.overrides == {"log.roll.ms": "5"}

    run(story)
    assert caplog.text.count("expected a number from 1 to 100") == 1
    assert caplog.text.count("listeners cannot be changed while a broker runs") == 1


def test_unreadable_node_is_reported_and_leaves_the_settings_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        observer = await world.observer()
        watched = await watch(world)
        await write(observer, min_insync_replicas="3")
        await observer.set(PATH, b"\xff")
        await pass_time(0.1)
        assert watched.dynamic.current.min_insync_replicas == 3

    run(story)
    assert f"{PATH}" in caplog.text
    assert "its settings stay as they were" in caplog.text


@pytest.mark.parametrize("content", [b"\xff", b"", b'{"version":1}'])
def test_a_broker_does_not_start_without_knowing_its_settings(content: bytes) -> None:
    """Those of its file could delete records that the unreadable ones keep."""

    async def story(world: World) -> None:
        observer = await world.observer()
        await write(observer, log_retention_ms="-1")
        await observer.set(PATH, content)
        with pytest.raises(UnreadableSettings, match=f"{PATH} .*correct that node or delete it"):
            await watch(world)

    run(story)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("min.insync.replicas", "2", None),
        ("log.retention.ms", "-1", None),
        ("min.insync.replicas", "x", "expected a number"),
        ("broker.id", "2", "cannot be changed while a broker runs"),
        ("min.insync", "2", "Did you mean min.insync.replicas?"),
        ("message.max.bytes", "16777216", "expected at most socket.request.max.bytes=16777216"),
    ],
)
def test_change_of_a_running_brokers_setting_is_checked(name: str, value: str, message: str | None) -> None:
    if message is None:
        assert accepted_broker_value(static_config(), name, value) == value
    else:
        with pytest.raises(BadValue, match=re.escape(message)) as refused:
            accepted_broker_value(static_config(), name, value)
        assert isinstance(refused.value, LookupError) == (not message.startswith("expected"))


def test_a_setting_of_a_broker_is_stored_as_its_value_is_written() -> None:
    assert accepted_broker_value(static_config(), "min.insync.replicas", " " * 32_000 + "02") == "2"
