"""The bench on real clusters with a tiny load, only to see that it produces figures. It says nothing about speed."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.__main__ import minibroker
from minibroker.bench.case import Round
from minibroker.bench.cases.produce import Produce
from minibroker.bench.document import decode
from minibroker.bench.peers.kafka_installation import KafkaInstallation
from minibroker.bench.peers.kafka_peer import KafkaPeer
from minibroker.command_line import EXIT_FINE

pytestmark = pytest.mark.system

RECORDS = 3_000


def a_round(directory: Path) -> Round:
    return Round(number=0, volume=1.0, directory=directory, kept={}, progress=lambda what: None)


def test_a_quick_run_on_a_real_cluster_writes_a_document_and_a_chart(tmp_path: Path) -> None:
    arguments = ["bench", "--quick", "--alternations", "1", "--cases", "produce-1kb-128kib,consume-1kb"]
    places = ["--out", str(tmp_path / "out"), "--data-dir", str(tmp_path / "data")]
    result = CliRunner().invoke(minibroker, [*arguments, *places, "--json"])
    assert result.exit_code == EXIT_FINE, result.output
    document = decode((tmp_path / "out" / "bench.json").read_bytes())
    assert [case.name for case in document.cases] == ["produce-1kb-128kib", "consume-1kb"]
    assert all(case.failures == [] and len(case.rounds) == 1 for case in document.cases)
    (round_,) = document.cases[0].rounds
    assert round_.figures["mb_s"] > 0
    assert {cost.role for cost in round_.costs} == {"broker-1", "broker-2", "broker-3", "zookeeper", "producer"}
    assert json.loads(result.stdout.splitlines()[-1])["commit"] == document.commit
    assert (tmp_path / "out" / "bench.svg").read_text().startswith("<svg")
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.slow
async def test_a_real_kafka_takes_the_same_load(tmp_path: Path) -> None:
    missing = KafkaInstallation().what_is_missing()
    if missing is not None:
        pytest.skip(missing)
    peer = KafkaPeer(tmp_path / "kafka", heap="256m")
    try:
        async with asyncio.timeout(100):
            await peer.start()
            found = await Produce(RECORDS, 1_000, 131_072)(peer, a_round(tmp_path))
            await peer.make_topic("led", 3)
            leaders = {await peer.leader_of("led", number) for number in range(3)}
            assert await peer.controller() in (1, 2, 3)
    finally:
        await peer.stop()
    assert leaders == {1, 2, 3}
    assert found.figures["mb_s"] > 0
    assert {cost.role for cost in found.costs} == {"broker-1", "broker-2", "broker-3", "zookeeper", "producer"}
    assert not (tmp_path / "kafka").exists()
