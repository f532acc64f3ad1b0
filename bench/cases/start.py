"""How long a start takes: a cluster until a topic can be written, and the command line until it prints its help.

Owns: the definition of started. It is the same for both peers: every broker takes part, then a new topic's first record
is acknowledged to a client that starts after the topic was created (so the client's own start counts, for both peers).
"""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from minibroker.bench.case import MINIBROKER, Case, CaseFailed, Measurement, Round
from minibroker.bench.load_process import running_load
from minibroker.bench.peers.peer import Peer

COMMAND_RUNS = 20
COMMANDS = {"help": ["--help"], "produce_help": ["produce", "--help"]}
FIRST_RECORD = {"record_bytes": 100, "pace_ms": 5.0}


async def start_cluster(peer: Peer, round: Round) -> Measurement:
    """Figures: registered_s, until every broker takes part; writable_s, until a record is acknowledged."""
    round.progress("starting")
    began = time.monotonic()
    await peer.start()
    registered_s = time.monotonic() - began
    await peer.make_topic("first")
    topic_s = time.monotonic() - began
    async with running_load(peer, "failover", topic="first", **FIRST_RECORD) as load:
        await load.wait_for("started")  # the generator sends it when its first record is acknowledged
        writable_s = time.monotonic() - began
        await load.send_command("end")
        await load.report()
    return Measurement(
        {"registered_s": round_ms(registered_s), "topic_s": round_ms(topic_s), "writable_s": round_ms(writable_s)}
    )


def round_ms(seconds: float) -> float:
    return round(seconds, 3)


async def start_command_line(peer: Peer, round: Round) -> Measurement:
    """Medians of wall and CPU time of `minibroker --help` and `minibroker produce --help`; no cluster is started."""
    figures: dict[str, float] = {}
    for name, arguments in COMMANDS.items():
        runs = [await asyncio.to_thread(time_command, [*command(), *arguments]) for _ in range(COMMAND_RUNS)]
        figures[f"{name}_ms"] = round_ms(median(wall for wall, _ in runs))
        figures[f"{name}_cpu_ms"] = round_ms(median(cpu for _, cpu in runs))
    return Measurement(figures)


def command() -> list[str]:
    """The installed script, as a user types it, or this Python where it is missing."""
    script = Path(sys.executable).with_name("minibroker")
    return [str(script)] if script.exists() else [sys.executable, "-m", "minibroker"]


def time_command(arguments: Sequence[str]) -> tuple[float, float]:
    """Wall and CPU milliseconds of one run. Raises CaseFailed if it fails."""
    began = time.perf_counter()
    silent = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in (0, 1, 2)]
    pid = os.posix_spawn(arguments[0], list(arguments), os.environ, file_actions=silent)
    _, status, used = os.wait4(pid, 0)
    wall_ms = (time.perf_counter() - began) * 1000
    if status:
        raise CaseFailed(f"{' '.join(arguments)} ended with {os.waitstatus_to_exitcode(status)}")
    return wall_ms, (used.ru_utime + used.ru_stime) * 1000


CASES = (
    Case(
        name="start-cluster",
        title="from nothing to three brokers and a first record",
        figure="writable_s",
        unit="s",
        higher_is_better=False,
        about_s=10,
        run=start_cluster,
        own_cluster=True,
        rounds=5,
    ),
    Case(
        name="start-command-line",
        title="`minibroker --help`",
        figure="help_ms",
        unit="ms",
        higher_is_better=False,
        about_s=15,
        run=start_command_line,
        peers=(MINIBROKER,),
        own_cluster=True,
        rounds=1,
    ),
)
