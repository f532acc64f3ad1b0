"""The broker process: it can be stopped while it starts."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path

import pytest

from minibroker.broker.__main__ import EXIT_BUG, EXIT_REPLACED, _end_process, _main, compose, main, run, run_broker
from minibroker.broker.broker import Broker
from minibroker.broker.configuration.config import load_config
from minibroker.broker.configuration.config_table import BrokerConfig
from minibroker.broker.membership.registration import BrokerIdTaken, ZooKeeperUnreachable
from minibroker.controller.service import ControllerConfig
from minibroker.protocol.files.checkpoints import CLEAN_SHUTDOWN
from minibroker.simulation.world.world import SimulatedWorld

CONFIG = [
    "broker.id=1",
    "log.dirs=/data/log",
    "zookeeper.connect=zookeeper:2181",
    "listeners=PLAINTEXT://broker-1:9092",
]

TASKS = {
    "start",
    "stop",
    "registration",
    "cluster-secret",
    "dynamic-config",
    "controller",
    "controller-link",
    "witness",
}


def config() -> BrokerConfig:
    return load_config(None, CONFIG, {})


def test_a_broker_that_waits_for_zookeeper_stops_at_once() -> None:
    world = SimulatedWorld()

    async def story() -> float:
        world.zookeeper.stop()
        stop = asyncio.Event()
        broker = world.spawn("broker-1", run(config(), world.runtime("broker-1"), stop))
        await asyncio.sleep(2)
        asked = asyncio.get_running_loop().time()
        stop.set()
        await broker
        return asyncio.get_running_loop().time() - asked

    assert world.run(story()) < 0.1


def test_a_failed_start_names_its_reason() -> None:
    world = SimulatedWorld()

    async def story() -> None:
        world.zookeeper.stop()
        await world.spawn("broker-1", run(config(), world.runtime("broker-1"), asyncio.Event()))

    with pytest.raises(ZooKeeperUnreachable, match=r"start it, or correct zookeeper.connect"):
        world.run(story())


def test_a_stop_during_the_start_is_clean() -> None:
    world = SimulatedWorld()

    async def story() -> None:
        stop = asyncio.Event()
        broker = world.spawn("broker-1", run(config(), world.runtime("broker-1"), stop))
        storage = world.machine("broker-1").storage
        for _ in range(10_000):
            if any(path.startswith("/data/log/") for path, _ in storage.files("/")):
                break
            await asyncio.sleep(0.001)
        stop.set()
        await broker
        assert "/data/log/.clean_shutdown" in dict(storage.files("/"))

    world.run(story())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_broker_as_an_operator_expects(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a handler the process would end at once: no leadership handed over, no mark of a clean stop."""
    ended: list[object] = []

    async def until_stopped(given: BrokerConfig, _: object, stop: asyncio.Event) -> None:
        os.kill(os.getpid(), number)
        async with asyncio.timeout(10):
            await stop.wait()
        ended.append((given, asyncio.get_running_loop().get_exception_handler()))

    monkeypatch.setattr("minibroker.broker.__main__.run", until_stopped)
    monkeypatch.setattr("minibroker.runtime.adapters.real.real_runtime", lambda *_: None)
    monkeypatch.setattr("minibroker.runtime.adapters.descriptors.raised_limit", lambda: 1)
    given = config()

    async def main_and_tasks_left() -> int:
        await _main(given)
        await asyncio.sleep(0)
        return len(asyncio.all_tasks()) - 1

    before = signal.signal(number, lambda *_: None)  # without a handler of the broker, this process goes on
    try:
        assert asyncio.run(main_and_tasks_left()) == 0
    finally:
        signal.signal(number, before)
    assert ended == [(given, _end_process)]


def test_a_broker_does_not_run_without_its_assertions(tmp_path: Path) -> None:
    """`python -O` removes assertions, including one that would detect it."""
    settings = tmp_path / "broker.properties"
    settings.write_text("\n".join(CONFIG))
    command = [sys.executable, "-O", "-m", "minibroker.broker", str(settings)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert "run without -O and PYTHONOPTIMIZE" in ended.stderr


def test_the_allocator_knows_its_limits_before_the_broker_takes_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the heap took before stays there: a burst at the start would keep its memory for ever."""
    steps: list[str] = []

    def started(main: Coroutine[None, None, None]) -> None:
        steps.append("started")
        main.close()

    monkeypatch.setattr("minibroker.runtime.adapters.allocator.return_freed_memory", lambda: steps.append("limited"))
    monkeypatch.setattr("uvloop.run", started)
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)
    assert run_broker(config()) == 0
    assert steps == ["limited", "started"]


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ZooKeeperUnreachable("no ZooKeeper at x: start it"), 1, "ERROR broker 1: no ZooKeeper at x: start it"),
        (BrokerIdTaken("in use"), 1, "ERROR broker 1: in use"),
        (BrokerIdTaken("taken over", is_replaced=True), EXIT_REPLACED, "ERROR broker 1: taken over"),
        (KeyError("x"), EXIT_BUG, "CRITICAL broker 1 ends because of a bug"),
    ],
)
def test_a_broker_that_ends_tells_why_by_its_log_and_its_exit_code(
    error: Exception, code: int, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def ended(main: Coroutine[None, None, None]) -> None:
        main.close()
        raise error

    monkeypatch.setattr("minibroker.runtime.adapters.allocator.return_freed_memory", lambda: None)
    monkeypatch.setattr("uvloop.run", ended)
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)
    assert run_broker(config()) == code
    assert [f"{each.levelname} {each.getMessage()}" for each in caplog.records] == [told]


def test_a_broker_without_a_readable_file_of_settings_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["minibroker.broker"])
    assert main() == 2
    assert capsys.readouterr().err == "usage: python -m minibroker.broker FILE [key=value]...\n"
    monkeypatch.setattr(sys, "argv", ["minibroker.broker", "/nowhere/broker.properties"])
    assert main() == 2
    assert "minibroker broker: [Errno 2] No such file or directory: '/nowhere" in capsys.readouterr().err


def test_a_broker_with_a_wrong_setting_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A setting of the command line comes before that of the file."""
    settings = tmp_path / "broker.properties"
    settings.write_text("\n".join(CONFIG))
    monkeypatch.setattr(sys, "argv", ["minibroker.broker", str(settings), "min.insync.replicas=many"])
    assert main() == 2
    assert "min.insync.replicas" in capsys.readouterr().err


def test_the_controller_has_the_settings_of_its_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[ControllerConfig] = []
    monkeypatch.setattr("minibroker.broker.__main__.ControllerService", lambda config, *_: given.append(config))
    monkeypatch.setattr("minibroker.broker.__main__.Broker", lambda config, runtime, make: make(*[None] * 4))
    changed = {
        "broker.failure.detection": "session",
        "unclean.leader.election.enable": "true",
        "auto.leader.rebalance.enable": "false",
        "leader.imbalance.check.interval.seconds": "17",
        "leader.imbalance.per.broker.percentage": "18",
        "default.replication.factor": "2",
        "num.partitions": "19",
        "min.insync.replicas": "2",
        "delete.topic.enable": "false",
        "request.timeout.ms": "20000",
        "zookeeper.session.timeout.ms": "21000",
    }
    for settings in ([], [f"{name}={value}" for name, value in changed.items()]):
        compose(load_config(None, [*CONFIG, *settings], {}), SimulatedWorld().runtime("broker-1"))
    usual, other = given
    assert usual.detects_lost_connections
    assert other == ControllerConfig(
        broker_id=1,
        inter_broker_listener_name=usual.inter_broker_listener_name,
        unclean_leader_election_enable=True,
        auto_leader_rebalance_enable=False,
        leader_imbalance_check_interval_seconds=17,
        leader_imbalance_per_broker_percentage=18,
        default_replication_factor=2,
        num_partitions=19,
        default_min_insync_replicas=2,
        request_timeout_ms=20_000,
        delete_topic_enable=False,
        answer_timeout_ms=21_000,
        detects_lost_connections=False,
    )


@pytest.mark.parametrize("serves", [False, True])
def test_no_task_of_the_start_or_the_service_still_runs_when_the_broker_closes_what_they_use(
    monkeypatch: pytest.MonkeyPatch, serves: bool
) -> None:
    """One that ended later would write into a directory or a session that is closed."""
    world, left = SimulatedWorld(), list[str]()
    close = Broker.stop

    async def closed(broker: Broker) -> None:
        left.extend(sorted(each.get_name() for each in asyncio.all_tasks() if each.get_name() in TASKS))
        await close(broker)

    monkeypatch.setattr(Broker, "stop", closed)

    async def story() -> None:
        stop = asyncio.Event()
        if not serves:
            world.zookeeper.stop()
        broker = world.spawn("broker-1", run(config(), world.runtime("broker-1"), stop))
        await asyncio.sleep(5)
        running = {each.get_name() for each in asyncio.all_tasks()} & TASKS
        assert running == (TASKS - {"start"} if serves else {"start", "stop"})
        stop.set()
        await broker

    world.run(story())
    assert left == []


@pytest.mark.parametrize("step", ["start", "serve"])
def test_a_bug_closes_nothing_so_that_the_next_start_takes_nothing_for_clean(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The logs were closed with the marker of a clean stop, which the next start believes."""
    world, reported = SimulatedWorld(), list[str]()

    async def fail(*_: object) -> None:
        raise AssertionError("a bug of our own")

    monkeypatch.setattr(Broker, step, fail)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(str(context["exception"])))
        with pytest.raises(AssertionError):
            await world.spawn("broker-1", run(config(), world.runtime("broker-1"), asyncio.Event()))

    world.run(story())
    assert reported == ["a bug of our own"]
    assert not [path for path, _ in world.machine("broker-1").storage.files("/") if path.endswith(CLEAN_SHUTDOWN)]
