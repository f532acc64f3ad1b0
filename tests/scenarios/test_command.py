"""`minibroker scenario`."""

import json
import logging

import pytest
from click.testing import CliRunner, Result

from minibroker.__main__ import minibroker
from minibroker.scenarios import catalogue, loss
from minibroker.simulation.cluster import SimulatedCluster


def run(*arguments: str) -> Result:
    return CliRunner().invoke(minibroker, ["scenario", *arguments])


def test_list_names_every_scenario() -> None:
    listed = [json.loads(line) for line in run("list", "--json").output.splitlines()]
    assert [each["name"] for each in listed] == list(catalogue.NAMES)


def test_a_scenario_prints_its_slides_and_the_verdict() -> None:
    result = run("run", "loss", "--truncation", "high-watermark")
    assert result.exit_code == 0
    assert "audit of the disks: inconsistent (acked-missing)" in result.output
    assert result.output.rstrip().endswith("as scripted")


def test_json_has_one_object_for_each_step() -> None:
    lines = [json.loads(line) for line in run("run", "two-rounds", "--json").output.splitlines()]
    assert [line["event"] for line in lines] == ["variant", *["step"] * 5, "verdict"]
    assert lines[4]["replicas"][0]["remote_ends"] == {"B": 1}
    assert lines[-1]["reached_its_end"] is True


def test_a_scenario_that_deviates_from_its_script_is_exit_code_10(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play_wrong_rule(stage: object) -> object:
        return await loss._goes_wrong(stage)  # type: ignore[arg-type, func-returns-value]

    monkeypatch.setattr(loss, "_goes_well", play_wrong_rule)
    result = run("run", "loss")
    assert result.exit_code == 10
    assert "NOT as scripted" in result.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("los",), "there is no scenario 'los'; did you mean 'loss'?"),
        (("min-isr", "--truncation", "high-watermark"), "the rule makes no difference to it"),
        (("loss", "--lag-rule", "time"), "--lag-rule belongs to burst-lag"),
    ],
)
def test_wrong_usage_says_what_is_right(arguments: tuple[str, ...], sentence: str) -> None:
    result = run("run", *arguments)
    assert result.exit_code == 2
    assert sentence in result.output


def test_the_lag_rule_chooses_the_act() -> None:
    first = json.loads(run("run", "burst-lag", "--lag-rule", "time", "--json").output.splitlines()[0])
    assert first["variant"] == "time"


def test_a_broker_that_truncates_at_the_high_watermark_warns_at_its_start(caplog: pytest.LogCaptureFixture) -> None:
    cluster = SimulatedCluster(brokers=1, settings={"replica.truncation.rule": "high-watermark"})

    async def start() -> None:
        cluster.start_all()
        await cluster.until_ready()

    with caplog.at_level(logging.WARNING, "minibroker"):
        cluster.world.run(start())
    assert [line for line in caplog.messages if line.startswith("replica.truncation.rule=high-watermark loses")]
