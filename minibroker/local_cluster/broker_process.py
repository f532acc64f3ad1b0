"""One broker of a local cluster as a background process: its configuration file, its environment, its start.

Owns: the configuration that a local broker gets. Leaves to others: when to start or stop one (local_cluster).
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from minibroker.local_cluster.cluster_file import (
    PRIVATE_FILE,
    PRIVATE_UMASK,
    START_CURE,
    BrokerRecord,
    ClusterRecord,
    written,
)
from minibroker.local_cluster.processes import ProcessIdentity, identify

SESSION_TIMEOUT_MS = 3_000
"""ZooKeeper's tick is 500 ms here, so a dead broker's session ends after about 3 s, not Kafka's 18."""
REPLICA_LAG_TIME_MAX_MS = 10_000
"""On one machine a follower that is 10 s behind is stuck; Kafka's 30 s suit networks."""
INHERITED_VARIABLES = ("MINIBROKER_LOG_LEVEL", "MINIBROKER_LOG_FORMAT")
"""Any other MINIBROKER_ variable may be a setting meant for one broker: here only the file counts."""

OF_EACH_BROKER = {
    "broker.id": "numbers its brokers from 1: leave it out",
    "log.dirs": "gives each broker a folder in the --data-dir: leave it out",
    "listeners": "gives each broker a port of its own: give --port, that of the first one",
    "advertised.listeners": "gives each broker a port of its own: give --port, that of the first one",
    "zookeeper.connect": "connects its brokers to the ZooKeeper that it starts, or that of --zookeeper: leave it out",
}
"""Settings that cannot be the same for all brokers of a cluster, and what a local cluster does about them."""

ORDINARY_LINE = re.compile(r"^\S+ \S+ (DEBUG|INFO|WARNING) |\"level\": ?\"(DEBUG|INFO|WARNING)\"")
"""Of a broker's log, in both formats. A broker that ends by itself writes an error last."""
HEAD_OF_LINE = re.compile(r"^(\d{4}-\d\d-\d\d \S+ [A-Z]+ \S+: )?(broker \d+: )?")
"""Time, level and logger of a line, and the broker that it is of."""

NOTHING = "(nothing)"
_CHILDREN: list["subprocess.Popen[bytes]"] = []
"""Kept, because Popen warns when it is collected while its process runs, and these processes outlive this one."""


def configuration_text(data_directory: Path, record: ClusterRecord, broker_id: int) -> str:
    """The broker's configuration file."""
    lines = ["# Written by `minibroker cluster up`; give other values with its --set."]
    return "\n".join(lines + broker_settings(data_directory, record, broker_id)) + "\n"


def broker_settings(data_directory: Path, record: ClusterRecord, broker_id: int) -> list[str]:
    """The local defaults, overridden by `cluster up --set`: name=value."""
    count = len(record.brokers)
    values = (
        {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{record.brokers[broker_id].port}",
            "log.dirs": str(data_directory / f"broker-{broker_id}"),
            "zookeeper.connect": record.zookeeper.connect,
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "default.replication.factor": str(min(3, count)),
            "min.insync.replicas": str(min(2, count)),
            "auto.create.topics.enable": "false",
            "replica.lag.time.max.ms": str(REPLICA_LAG_TIME_MAX_MS),
        }
        | record.settings
        | record.brokers[broker_id].settings
    )
    return [f"{key}={value}" for key, value in values.items()]


def problem_of_common_settings(settings: Mapping[str, str]) -> str | None:
    """Which of the settings for all brokers cannot be one of all brokers, with the cure; None if there is none."""
    found = [f"--set {name}: a local cluster {OF_EACH_BROKER[name]}" for name in settings if name in OF_EACH_BROKER]
    return "; ".join(found) or None


def configuration_file(data_directory: Path, broker_id: int) -> Path:
    return data_directory / f"broker-{broker_id}.properties"


def start_broker(
    data_directory: Path,
    record: ClusterRecord,
    broker_id: int,
    log_format: str | None = None,
    program: Sequence[str] = ("minibroker",),
) -> BrokerRecord:
    """Start the process in the background and return its record. Raises NotWritten. Its output is appended to
    broker-<id>.log, which the broker rotates (`runtime/adapters/log_file`); output from before it opens its log goes
    there, too. `log_format` None: that of the environment. `program`: what `python -m` runs."""
    configuration = configuration_file(data_directory, broker_id)
    with written(configuration):
        configuration.touch(PRIVATE_FILE)
        configuration.write_text(configuration_text(data_directory, record, broker_id))
    log_file = data_directory / f"broker-{broker_id}.log"
    with written(log_file):
        log_file.touch(PRIVATE_FILE)
    command = [sys.executable, "-P", "-m", *program, "broker"]  # -P: no code of the working directory may run
    command += ["--config", str(configuration), "--log-file", str(log_file)]
    command += [] if log_format is None else ["--log-format", log_format]
    with log_file.open("ab") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(),
            cwd=data_directory,
            umask=PRIVATE_UMASK,
            start_new_session=True,  # Ctrl-C of the command line must not reach the brokers
        )
    _CHILDREN.append(child)
    process = identify(child.pid) or ProcessIdentity(child.pid, "ended at once")
    before = record.brokers[broker_id]
    return BrokerRecord(port=before.port, process=process, settings=before.settings)


def inherited_variables() -> dict[str, str]:
    """Those of minibroker that a broker gets."""
    return {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}


def _environment() -> dict[str, str]:
    """This process's environment, with the same minibroker importable."""
    foreign = {name: value for name, value in os.environ.items() if not name.startswith("MINIBROKER_")}
    environment = foreign | inherited_variables()
    here = str(Path(__file__).resolve().parents[2])
    others = [os.path.abspath(path) for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    return environment | {"PYTHONPATH": os.pathsep.join([here, *(path for path in others if path != here)])}


def ended_problems(logs: Mapping[int, Path]) -> list[str]:
    """As `ended_brokers`, each with its cure. What refused to run would refuse again."""
    cures = [START_CURE if was_killed(path) else f"after a repair, {START_CURE}" for path in logs.values()]
    return [f"{sentence}; {cure}" for sentence, cure in zip(ended_brokers(logs), cures, strict=True)]


def was_killed(path: Path) -> bool:
    """Of a broker that ended by itself: does its log name no reason?"""
    return _reason_of(path) in (None, NOTHING)


def ended_brokers(logs: Mapping[int, Path]) -> list[str]:
    """A sentence for each broker that ended by itself, with the reason as far as its log shows it. Brokers end together
    where all refuse the same, so a reason that differs in numbers only is told once."""
    first: dict[str, int] = {}
    sentences = []
    for broker_id, path in logs.items():
        reason = _reason_of(path)
        same = first.setdefault(re.sub(r"\d+", "0", reason or path.name), broker_id)
        if same != broker_id:
            why = f"for the same reason as broker {same}"
        elif reason is None:
            why = f"{path} names no reason, so it was killed (SIGKILL, or no memory was left)"
        else:
            why = f"{path} ends with: {reason}"
        sentences.append(f"broker {broker_id} has ended by itself{',' if same != broker_id else ':'} {why}")
    return sentences


def _reason_of(path: Path) -> str | None:
    """The last line of a log, as a sentence without its time; None if it is an ordinary one."""
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    last = lines[-1] if lines else NOTHING
    if ORDINARY_LINE.search(last):
        return None
    if last.startswith("{"):
        try:
            last = str(msgspec.json.decode(last, type=_JsonLine).text)
        except msgspec.MsgspecError:
            pass
    return HEAD_OF_LINE.sub("", last)


class _JsonLine(msgspec.Struct):
    text: str
