"""Brokers and ZooKeeper that run in a data directory although `cluster.json` does not say so.

Owns: finding them by their command lines. A command that was killed, or whose disk was full, may have started or ended
one and not have written it down. Leaves to others: `cluster.json`, and ending what was found.
"""

from pathlib import Path

from minibroker.local_cluster.broker_process import configuration_file
from minibroker.local_cluster.cluster_file import (
    OF_ONE_BROKER,
    ZOOKEEPER_DIRECTORY,
    BrokerRecord,
    ClusterFailed,
    ClusterRecord,
)
from minibroker.local_cluster.processes import (
    ProcessIdentity,
    identify,
    is_same_file,
    own_command_lines,
    ran_beside_removed,
    runs_beside_another,
)
from minibroker.local_cluster.zookeeper_process import CONFIGURATION, MAIN_CLASS


def add_unrecorded(data_directory: Path, record: ClusterRecord) -> None:
    """Put what runs into the record, where the process that it names has ended."""
    brokers = {each: configuration_file(data_directory, each) for each in record.brokers}
    zookeeper = data_directory / ZOOKEEPER_DIRECTORY / CONFIGURATION
    missing = {each for each, file in brokers.items() if not _runs(record.brokers[each].process, file)}
    misses_zookeeper = record.zookeeper.port is not None and not _runs(record.zookeeper.process, zookeeper)
    if not missing and not misses_zookeeper:
        return
    for pid, words in own_command_lines():
        if misses_zookeeper and MAIN_CLASS in words and is_same_file(pid, words[-1], zookeeper):
            record.zookeeper.process = identify(pid) or record.zookeeper.process
        used = _configuration_of_broker(words)
        for each in missing if used else ():
            if is_same_file(pid, used, brokers[each]) and (process := identify(pid)) is not None:
                known = record.brokers[each]
                record.brokers[each] = BrokerRecord(port=known.port, process=process, settings=known.settings)


def refuse_unrecorded(data_directory: Path) -> None:
    """Raise ClusterFailed if a ZooKeeper or a broker runs in a directory that has no usable `cluster.json`, or was
    removed. A second ZooKeeper would write to the same files: it takes no lock."""
    zookeeper = data_directory / ZOOKEEPER_DIRECTORY / CONFIGURATION
    found = []
    for pid, words in own_command_lines():
        used = Path(_configuration_of_broker(words))
        is_here = OF_ONE_BROKER.fullmatch(used.name) and is_same_file(pid, str(used.parent), data_directory)
        file = data_directory / used.name
        is_broker = (is_here and not runs_beside_another(pid, file)) or ran_beside_removed(pid, str(used), file)
        if is_broker or (MAIN_CLASS in words and _runs_zookeeper(pid, words[-1], zookeeper)):
            found.append(str(pid))
    if found:
        raise ClusterFailed(
            f"processes of a cluster run in {data_directory} without a cluster.json: end them with"
            f" `kill {' '.join(sorted(found, key=int))}`, then start it again"
        )


def _runs_zookeeper(pid: int, word: str, file: Path) -> bool:
    return is_same_file(pid, word, file) or ran_beside_removed(pid, word, file)


def _runs(process: ProcessIdentity | None, file: Path) -> bool:
    return process is not None and process.was_started_with(file)


def _configuration_of_broker(words: list[str]) -> str:
    """FILE of `.. broker --config FILE ..`, else nothing: an editor or `tail` of that file is no broker."""
    for first, second, third in zip(words, words[1:], words[2:], strict=False):
        if (first, second) == ("broker", "--config"):
            return third
    return ""
