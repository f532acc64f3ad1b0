"""The file of a long swarm: it goes on where it was, and only with the same code and options."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from minibroker import swarm_runs
from minibroker.__main__ import minibroker
from minibroker.code_version import code_digest
from minibroker.command_line import EXIT_FINE
from minibroker.simulation.swarm.choices import ALL_DRAWN
from minibroker.swarm_runs import SwarmSummary
from minibroker.swarm_state import SAVE_SECONDS, NoState, OtherOptions, StateFile, SwarmState, continued


def state(code: str = "c0de", commit: str = "abcdef0123456789", **options: object) -> SwarmState:
    first = 10
    return SwarmState(
        commit=commit,
        code=code,
        options={"brokers": 3, **options},
        first_seed=first,
        done_below=first,
        summary=SwarmSummary(),
    )


def test_seeds_that_end_in_no_order_run_once() -> None:
    mine = state()
    for seed in (12, 10, 14):
        mine.add(seed)
    assert [*mine.left(6)] == [11, 13, 15]
    assert (mine.done_below, mine.done_above) == (11, {12, 14})
    mine.add(11)
    assert (mine.done_below, mine.done_above) == (13, {14})


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    mine = state()
    mine.add(12)
    mine.summary.seen["election"] = 7
    mine.summary.failed[12] = ["I21 lost"]
    mine.summary.lines["broker/broker.py"] = {3, 5}
    file = StateFile(tmp_path / "state.json")
    assert file.load() is None
    file.save(mine)
    found = file.load()
    assert found == mine
    assert found is not None
    found.summary.seen["new"] += 1  # it is a counter again
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_file_is_written_now_and_then(tmp_path: Path) -> None:
    now = 100.0
    file = StateFile(tmp_path / "state.json", lambda: now)
    file.save_now_and_then(state())
    assert not file.path.exists()
    now += SAVE_SECONDS
    file.save_now_and_then(state())
    assert file.path.exists()


def test_same_code_goes_on_though_the_commit_is_another(tmp_path: Path) -> None:
    file, said, mine = StateFile(tmp_path / "state.json"), list[str](), state()
    mine.add(10)
    mine.summary.runs = 1
    file.save(mine)
    assert continued(file, state(commit="f00"), said.append) == mine
    assert said == [f"{file.path}: going on after 1 run, 0 failed"]


def test_other_code_begins_anew_and_keeps_the_old_file(tmp_path: Path) -> None:
    file, said, mine = StateFile(tmp_path / "state.json"), list[str](), state()
    file.save(mine)
    new = state(code="0ther")
    assert continued(file, new, said.append) is new
    assert "is of other code (commit abcdef012345; 0 runs, 0 failed): kept as" in said[0]
    assert StateFile(tmp_path / "state.json.abcdef012345").load() == mine
    assert not file.path.exists()


def test_other_options_are_refused(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    file.save(state(loads=True))
    with pytest.raises(OtherOptions, match="loads=True"):
        continued(file, state(loads=False), print)


def test_other_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"runs": 3}')
    with pytest.raises(NoState, match="not the state of a swarm"):
        StateFile(tmp_path / "state.json").load()


@pytest.mark.timeout(120)
def test_command_goes_on_from_its_file(tmp_path: Path) -> None:
    def simulate(seeds: str) -> tuple[int, str, str]:
        path = str(tmp_path / "state.json")
        options = ["--seeds", seeds, "--first-seed", "11", "--workers", "1", "--resume", path, "--no-coverage"]
        result = CliRunner().invoke(minibroker, ["simulate", *options, "--json"])
        return result.exit_code, result.stdout, result.stderr

    code, output, _ = simulate("1")
    assert (code, json.loads(output)["runs"]) == (EXIT_FINE, 1)
    code, output, said = simulate("2")
    assert (code, json.loads(output)["runs"], json.loads(output)["seeds"]) == (EXIT_FINE, 2, [11, 12])
    assert "going on after 1 run" in said
    assert json.loads(simulate("2")[1])["virtual_seconds"] == json.loads(output)["virtual_seconds"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"commit":"abc', b'"commit":"../'),  # it becomes a part of a file's name
        (b'"commit":"abc', b'"commit":"\\u0000'),
        (b'"commit":"abc', b'"commit":"\xff'),
        (b'"done_below":10', b'"done_below":-1000000000'),
        (b'"seconds":0.0', b'"seconds":-1.0'),
        (b'"seen":{}', b'"seen":{"election":"7"}'),  # a sum with others, or their order, would fail later
        (b'"injected":{}', b'"injected":[null]'),
        (b'"failed":{}', b'"failed":{"10":[]}'),  # the first of its findings is shown
        (b'"options":{', b'"options":{"deep":' + b"[" * 100_000 + b"]" * 100_000 + b","),
    ],
)
def test_a_damaged_state_is_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    file = StateFile(tmp_path / "state.json")
    file.save(state())
    content = file.path.read_bytes()
    assert old in content
    file.path.write_bytes(content.replace(old, new))
    with pytest.raises(NoState):
        file.load()


def test_a_swarm_that_took_no_time_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    options = ["simulate", "--seeds", "1", "--first-seed", "11", "--workers", "1", "--resume", str(file)]
    began = SwarmState(
        commit="",
        code=code_digest(),
        options={**msgspec.structs.asdict(ALL_DRAWN), "first_seed": "11"},
        first_seed=11,
        done_below=12,
        summary=SwarmSummary(runs=1, counted=1),
    )
    StateFile(file).save(began)
    result = CliRunner().invoke(minibroker, options, catch_exceptions=False)
    assert (result.exit_code, result.stderr.count("\n")) == (EXIT_FINE, 1)


def test_a_place_that_cannot_be_written_is_told_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swarm_runs, "run_many", lambda *arguments, **named: pytest.fail("it has begun"))
    (tmp_path / "state.json.new").mkdir()
    options = ["simulate", "--seeds", "1", "--workers", "1", "--resume", str(tmp_path / "state.json")]
    assert isinstance(CliRunner().invoke(minibroker, options).exception, IsADirectoryError)


def test_an_option_that_the_file_lacks_is_named(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    file.save(state())
    with pytest.raises(OtherOptions, match="loads=None"):
        continued(file, state(loads=True), list[str]().append)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "swarm.json"
    os.mkfifo(file)
    with pytest.raises(OSError, match="named pipe"):
        StateFile(file).load()
