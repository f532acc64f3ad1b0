"""What a bench against Kafka lacks is reported in one sentence with the remedy."""

import asyncio
from pathlib import Path

import pytest

from minibroker.bench.peers.kafka_installation import KafkaInstallation
from minibroker.bench.peers.kafka_peer import KafkaPeer
from minibroker.bench.peers.peer import PeerFailed


def test_an_empty_cache_names_the_command_that_fills_it(tmp_path: Path) -> None:
    missing = KafkaInstallation(tmp_path).what_is_missing()
    assert missing is not None
    assert "make bench-kafka" in missing


def test_without_maven_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installation = KafkaInstallation(tmp_path)
    monkeypatch.setattr("minibroker.bench.peers.kafka_installation.find_maven", lambda: None)
    with pytest.raises(PeerFailed, match="apt-get install -y maven"):
        installation.install(lambda what: None)


def test_a_failed_fetch_is_reported_and_leaves_no_partial_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibroker.bench.peers.kafka_installation.find_maven", lambda: "/bin/false")
    installation = KafkaInstallation(tmp_path)
    with pytest.raises(PeerFailed, match="check the network"):
        installation.install(lambda what: None)
    assert not installation.jars.exists()


async def test_kafka_does_not_start_without_its_jars(tmp_path: Path) -> None:
    peer = KafkaPeer(tmp_path / "data", installation=KafkaInstallation(tmp_path / "cache"))
    with pytest.raises(PeerFailed, match="make bench-kafka"):
        await peer.start()
    await peer.stop()


def test_zookeeper_of_kafka_has_its_data_in_the_directory_of_the_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configuration is the one of minibroker's clusters. When that had changed, no bench against Kafka began."""

    async def serves(port: int, word: str) -> str:
        return "Mode: standalone"

    commands: list[list[str]] = []
    peer = KafkaPeer(tmp_path)
    monkeypatch.setattr("minibroker.bench.peers.kafka_peer.ask_zookeeper", serves)
    monkeypatch.setattr(peer, "_spawn", lambda role, options, main: commands.append(main))
    asyncio.run(peer._start_zookeeper())
    [[_, configuration]] = commands
    settings = dict(line.split("=", 1) for line in Path(configuration).read_text().splitlines())
    assert (tmp_path / settings["dataDir"]).is_dir(), "processes of the peer run in its directory"
    assert settings["clientPort"] == str(peer._zookeeper_port)
