"""The broker process: a broker and a controller candidate on one event loop.

Owns: the composition of broker and controller, signals, logging, and the exit code: 0 after a clean stop, 1 if the
broker could not start or lost its registration, 2 if Python runs without assertions, 3 if another process has taken
its id, 70 on a bug of its own (replication recovers from a crash, but not from silent divergence).
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from typing import Any

from minibroker.broker.broker import ENVIRONMENT_ERRORS, Broker
from minibroker.broker.configuration.config import ConfigError, load_config
from minibroker.broker.configuration.config_table import BrokerConfig
from minibroker.broker.configuration.dynamic_config import accepted_broker_value
from minibroker.broker.configuration.topic_config import accepted_topic_value
from minibroker.broker.membership.registration import BrokerIdTaken
from minibroker.controller.service import ControllerConfig, ControllerService
from minibroker.runtime.broker_dialer import BrokerDialer
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import Coordination, Runtime

log = logging.getLogger("minibroker")

GC_THRESHOLD = 50_000
"""New containers before the youngest generation is collected; CPython's 700 means once every few requests."""
ANSWER_TIMEOUT_MS_MIN = 6_000
"""For requests of the controller: a request that creates thousands of logs on a slow disk takes seconds."""
EXIT_REPLACED = 3
"""Another process has taken the id of this one. Whatever starts programs again must not start this one."""
EXIT_BUG = 70
"""EX_SOFTWARE: an assertion failed; the log says which."""


def compose(config: BrokerConfig, runtime: Runtime) -> Broker:
    """A broker with its controller candidate, not started; the simulation composes the same."""

    def make_controller(
        coordination: Coordination, dialer: BrokerDialer, own_broker: Broker, observer: Observer
    ) -> ControllerService:
        return ControllerService(
            ControllerConfig(
                broker_id=config.broker_id,
                inter_broker_listener_name=config.inter_broker_listener,
                unclean_leader_election_enable=config.unclean_leader_election_enable,
                auto_leader_rebalance_enable=config.auto_leader_rebalance_enable,
                leader_imbalance_check_interval_seconds=config.leader_imbalance_check_interval_seconds,
                leader_imbalance_per_broker_percentage=config.leader_imbalance_per_broker_percentage,
                default_replication_factor=config.default_replication_factor,
                num_partitions=config.num_partitions,
                default_min_insync_replicas=config.min_insync_replicas,
                delete_topic_enable=config.delete_topic_enable,
                answer_timeout_ms=max(ANSWER_TIMEOUT_MS_MIN, config.zookeeper_session_timeout_ms),
                detects_lost_connections=config.broker_failure_detection == "connection",
                request_timeout_ms=config.request_timeout_ms,
            ),
            coordination,
            dialer,
            own_broker,
            runtime.clock,
            runtime.random,
            accepted_topic_value,
            lambda name, value: accepted_broker_value(config, name, value),
            observer,
        )

    return Broker(config, runtime, make_controller)


async def run(config: BrokerConfig, runtime: Runtime, stop: asyncio.Event) -> None:
    """Start, serve until `stop`, close. After a bug of our own nothing is closed, so nothing counts as clean."""
    broker = compose(config, runtime)
    try:
        if await _start(broker, stop):
            _settle_memory()
            await broker.serve(stop)
    except (*ENVIRONMENT_ERRORS, asyncio.CancelledError):
        await broker.stop()
        raise
    except Exception as bug:
        context = {"message": "the broker cannot go on", "exception": bug}
        asyncio.get_running_loop().call_exception_handler(context)
        raise
    await broker.stop()


async def _start(broker: Broker, stop: asyncio.Event) -> bool:
    """False: stopped while it waited for ZooKeeper. A start that has begun to load logs runs to its end."""
    starting = asyncio.create_task(broker.start(), name="start")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done() or broker.loads_logs:
            await starting
            return True
        return False
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)


def _settle_memory() -> None:
    """Exclude the objects that exist now from each collection, and collect less often: requests leave no cycles behind.
    Measured: a tenth of the time of one record."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 50)


def run_broker(config: BrokerConfig, log_file: str | None = None, log_format: str = "text") -> int:
    """Run in the foreground until SIGTERM or SIGINT; returns the exit code. Without a file the log goes to stderr.
    `log_format`: text or json."""
    import uvloop  # here, like the real ports below: the simulation composes the same broker without them

    from minibroker.runtime.adapters.allocator import return_freed_memory
    from minibroker.runtime.adapters.json_lines import JsonLines
    from minibroker.runtime.adapters.log_file import FORMAT, RotatedLog

    return_freed_memory()
    if not __debug__:  # an assertion could not report this
        print(
            "minibroker broker: run without -O and PYTHONOPTIMIZE: assertions end a broker with a bug", file=sys.stderr
        )
        return 2
    handler = logging.StreamHandler(sys.stderr) if log_file is None else RotatedLog(log_file)
    handler.setFormatter(JsonLines(config.broker_id) if log_format == "json" else logging.Formatter(FORMAT))
    logging.basicConfig(level=(os.environ.get("MINIBROKER_LOG_LEVEL") or "INFO").upper(), handlers=[handler])
    logging.getLogger("kazoo").setLevel(logging.ERROR)
    try:
        uvloop.run(_main(config))
    except ENVIRONMENT_ERRORS as error:
        log.error("broker %d: %s", config.broker_id, error)
        return EXIT_REPLACED if isinstance(error, BrokerIdTaken) and error.is_replaced else 1
    except BaseException:  # a bug of our own: log it and exit, because this process must serve nothing more
        log.critical("broker %d ends because of a bug", config.broker_id, exc_info=True)
        return EXIT_BUG
    return 0


async def _main(config: BrokerConfig) -> None:
    from minibroker.runtime.adapters.allocator import trim_regularly
    from minibroker.runtime.adapters.descriptors import raised_limit
    from minibroker.runtime.adapters.real import real_runtime

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.set_exception_handler(_end_process)
    trimming = loop.create_task(trim_regularly(), name="trim")
    try:
        await run(config, real_runtime(raised_limit(), config.zookeeper_digest_credentials), stop)
    finally:
        trimming.cancel()


def _end_process(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handles an exception in a callback or in a task that nothing awaits: a bug of our own. The process must not
    continue with half a decision."""
    error = context.get("exception")
    log.critical("a bug ends this process: %s", context.get("message"), exc_info=error)
    logging.shutdown()
    os._exit(EXIT_BUG)


def main() -> int:
    """`python -m minibroker.broker FILE [key=value]...`; the command for users is `minibroker broker`."""
    if len(sys.argv) < 2:
        print("usage: python -m minibroker.broker FILE [key=value]...", file=sys.stderr)
        return 2
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            text = file.read()
        config = load_config(text, sys.argv[2:], os.environ)
    except (OSError, ConfigError) as error:
        print(f"minibroker broker: {error}", file=sys.stderr)
        return 2
    return run_broker(config)


if __name__ == "__main__":
    sys.exit(main())
