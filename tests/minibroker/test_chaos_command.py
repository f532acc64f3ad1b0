"""`minibroker chaos`: what it says before a run, and about wrong input."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.command_line import EXIT_COULD_NOT, CommandFailed
from minibroker.commands.chaos import check, run, table


def test_a_run_is_announced_on_stderr(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a terminal it was silent until its end."""

    def fail(*_: object) -> None:
        raise CommandFailed("not run here")

    monkeypatch.setattr("minibroker.commands.chaos._execute", fail)
    options = ["--backend", "simulated", "--seed", "7", "--faults", "kill", "--out", str(tmp_path)]
    printed = CliRunner().invoke(run, options)
    first = printed.stderr.splitlines()[0]
    assert first.startswith("seed 7: ")
    assert first.endswith(f"within 60 s on simulated; recovery and audit follow; the report goes to {tmp_path}")
    assert printed.stdout == ""


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("min.insync.replica=1", "Did you mean min.insync.replicas?"),
        ("min.insync.replicas=x", "min.insync.replicas"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, told: str
) -> None:
    def start(*_: object) -> None:
        pytest.fail("a cluster was started")

    monkeypatch.setattr("minibroker.commands.chaos._execute", start)
    printed = CliRunner().invoke(run, ["--set", setting, "--out", str(tmp_path)])
    assert printed.exit_code == 2
    assert told in printed.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--client", "sh", "--backend", "simulated"], "real time"),
        (["--client", "no-such-program x"], "there is no program 'no-such-program'"),
        (["--client", "sh 'open"], "is no command"),
        (["--client", ""], "there is no program"),
        (["--idempotent", "writer-0"], "give --client COMMAND"),
    ],
)
def test_a_client_program_that_cannot_be_the_load_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], told: str
) -> None:
    monkeypatch.setattr("minibroker.commands.chaos._execute", lambda *_: pytest.fail("a cluster was started"))
    printed = CliRunner().invoke(run, [*words, "--out", str(tmp_path)])
    assert printed.exit_code == 2
    assert told in printed.stderr


def test_a_directory_without_a_history_is_a_failure(tmp_path: Path) -> None:
    """Once it was a usage error; the directory of a run stands for its history."""
    result = CliRunner().invoke(check, [str(tmp_path)])
    assert (result.exit_code, "holds no history.jsonl: name the file" in result.stderr) == (EXIT_COULD_NOT, True)
    (tmp_path / "history.jsonl").write_text("x")
    assert "line 1 is no event of a history" in CliRunner().invoke(check, [str(tmp_path)]).stderr


def test_values_of_a_history_give_the_terminal_no_orders(tmp_path: Path) -> None:
    events = [
        {"index": 0, "time_ns": 0, "process": "r", "type": "invoke", "f": "poll"},
        *(
            {"index": n, "time_ns": n, "process": "r", "type": "ok", "f": "poll", "polled": [polled]}
            for n, polled in enumerate(({"key": "a-0", "value": value, "offset": 0} for value in ("\x1b[2J", "y")), 1)
        ),
    ]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    printed = CliRunner().invoke(check, [str(tmp_path)])
    assert "inconsistent-offsets" in printed.stdout
    assert "\x1b" not in printed.stdout and "\\x1b[2J" in printed.stdout


def test_a_table_needs_runs_that_have_ended(tmp_path: Path) -> None:
    printed = CliRunner().invoke(table, [str(tmp_path)])
    assert printed.exit_code == 1
    assert "holds no report.json: name the directory of a chaos run that has ended" in printed.stderr
    (tmp_path / "report.json").write_text("{}")
    printed = CliRunner().invoke(table, [str(tmp_path)])
    assert "is no report of a chaos run" in printed.stderr
    assert CliRunner().invoke(table, [str(tmp_path), "--json", "--markdown"]).exit_code == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [([], "unseen 1 in"), (["--unfinished"], "no anomaly"), (["--last-reader", "other"], "no anomaly")],
)
def test_what_the_last_reader_of_a_run_did_not_see_is_missing(tmp_path: Path, words: list[str], told: str) -> None:
    """Once a record counted as seen that a consumer had read before it was lost."""
    record = {"key": "a-0", "value": "x", "offset": 0}
    events: list[dict[str, object]] = [
        {"process": "w", "type": "ok", "f": "send", "sent": [record]},
        {"process": "consumer-0.0", "type": "ok", "f": "poll", "polled": [record]},
        {"process": "final-reader", "type": "ok", "f": "poll"},
    ]
    lines = [json.dumps({"index": n, "time_ns": n, **event}) + "\n" for n, event in enumerate(events)]
    (tmp_path / "history.jsonl").write_text("".join(lines))
    assert told in CliRunner().invoke(check, [str(tmp_path), *words]).stdout


def test_a_run_in_containers_without_an_engine_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It left a directory with an empty log."""
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "chaos"
    result = CliRunner().invoke(run, ["--backend", "compose", "--seed", "7", "--faults", "kill", "--out", str(out)])
    assert (result.exit_code, result.stdout) == (EXIT_COULD_NOT, "")
    assert "no Docker engine answers" in result.stderr
    assert not out.exists()


def test_a_history_that_sends_a_value_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    sent = '"process":"p","type":"ok","f":"send","sent":[{"key":"t-0","value":"a"}]'
    file.write_text("".join(f'{{"index":{each},"time_ns":{each},{sent}}}\n' for each in (0, 1)))
    result = CliRunner().invoke(check, [str(file)])
    assert result.exit_code == EXIT_COULD_NOT
    assert f"{file}: 'a' is sent twice in t-0" in result.stderr
