"""The conventions of every command."""

import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from minibroker import __version__
from minibroker.__main__ import minibroker
from minibroker.client.errors import InvalidCall
from minibroker.client.limits import parse_servers
from minibroker.command_line import (
    EXIT_COULD_NOT,
    EXIT_FINE,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    CommandFailed,
    LazyGroup,
    ProgressLine,
    WrongUsage,
    default_servers,
    human_bytes,
    print_error,
    print_json,
    print_table,
    run_async,
    run_command_line,
    topics_option,
)
from minibroker.commands.cluster import run_on_cluster
from minibroker.commands.offsets import offsets
from minibroker.commands.topic import create
from minibroker.local_cluster.broker_names import BadBrokerName
from minibroker.local_cluster.cluster_file import ClusterMissing, read_cluster_file, write_cluster_file
from minibroker.local_cluster.cluster_zookeeper import ClusterZooKeeper
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.shortened_text import shortened
from minibroker.unknown_names import unknown_topics


def groups() -> list[LazyGroup]:
    context = click.Context(minibroker)
    commands = [minibroker.get_command(context, name) for name in minibroker.list_commands(context)]
    return [minibroker, *(command for command in commands if isinstance(command, LazyGroup))]


def all_commands() -> list[tuple[str, click.Command]]:
    found = []
    for group in groups():
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if not isinstance(command, click.Group):
                found.append((f"{group.name} {name}", command))
    return found


def test_listed_help_equals_the_commands_own_help() -> None:
    for group in groups():
        for name, (target, text) in group.lazy.items():
            module, _, attribute = target.partition(":")
            command = getattr(importlib.import_module(module), attribute)
            assert command.name == name, target
            assert (command.help or "").split("\n\n")[0].replace("\n", " ") == text or group is minibroker, target


def test_every_command_takes_json() -> None:
    without = [name for name, command in all_commands() if "as_json" not in {param.name for param in command.params}]
    assert without == []


def test_version_is_printed() -> None:
    result = CliRunner().invoke(minibroker, ["--version"])
    assert (result.exit_code, result.output) == (EXIT_FINE, f"minibroker, version {__version__}\n")


def test_unknown_command_is_usage_error_with_suggestion() -> None:
    result = CliRunner().invoke(minibroker, ["prodce"])
    assert result.exit_code == EXIT_USAGE
    assert "did you mean 'produce'?" in result.output


def test_bootstrap_servers_come_from_the_environment() -> None:
    result = CliRunner().invoke(
        minibroker, ["replicas", "--timeout", "5"], env={"MINIBROKER_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    )
    assert result.exit_code == EXIT_COULD_NOT
    assert "127.0.0.1:1" in result.output


def test_the_default_servers_are_those_of_the_local_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINIBROKER_DATA_DIR", str(tmp_path))
    assert default_servers() == "localhost:9092"
    write_cluster_file(tmp_path, LocalCluster(tmp_path, 2, port=19_092).record)
    assert default_servers() == "127.0.0.1:19092,127.0.0.1:19093"
    (tmp_path / "cluster.json").write_text("[]")
    assert default_servers() == "localhost:9092"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_color_and_a_dumb_terminal_leave_no_colour(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        click.secho("red", fg="red")
        raise CommandFailed("no")

    monkeypatch.setattr(sys, "argv", ["minibroker"])
    monkeypatch.setattr("click._compat._is_jupyter_kernel_output", lambda stream: True)  # colours for any output
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    leave(fail)
    assert "\x1b[31m" in "".join(capsys.readouterr())
    monkeypatch.setenv(name, value)
    leave(fail)
    assert capsys.readouterr() == ("red\n", "error: no\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"there is no {'x' * 1001}: check the path", f"there is no {'x' * 100}.. (1001 characters): check the path"),
        (f"'{'a b' * 400}' is no setting", f"'{('a b' * 400)[:100]}.. (1200 characters)' is no setting"),
        (f"{'x' * 1000} {'y' * 1000}", f"{'x' * 1000} {'y' * 1000}"),
        (f"it's {'word ' * 300}and it's fine", f"it's {'word ' * 300}and it's fine"),
    ],
)
def test_what_a_user_typed_is_shown_in_part_if_it_is_very_long(text: str, shown: str) -> None:
    """Once a name of 70,000 characters was echoed, twice."""
    assert shortened(text) == shown


def test_every_error_is_shortened(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise CommandFailed("x" * 70_000)

    monkeypatch.setattr(sys, "argv", ["minibroker"])
    leave(fail)
    monkeypatch.setattr(sys, "argv", ["minibroker", "--json"])
    leave(fail)
    print_error("x" * 70_000, 1, as_json=False)
    assert [len(line) < 200 for line in capsys.readouterr().err.splitlines()] == [True, True, True]


def test_a_topic_name_that_no_request_can_carry_is_refused_in_plain_words() -> None:
    result = CliRunner().invoke(minibroker, ["topic", "create", "x" * 250])
    assert result.exit_code == EXIT_USAGE
    assert "is no topic's name: give at most 249 characters" in result.output


def test_topics_are_named_with_and_without_their_option() -> None:
    @click.command()
    @topics_option()
    def show(topics: tuple[str, ...]) -> None:
        click.echo(",".join(topics))

    assert CliRunner().invoke(show, ["a", "-t", "b", "-t", "b", "c"]).output == "b,a,c\n"
    result = CliRunner().invoke(show, [])
    assert (result.exit_code, "which topic?" in result.output) == (EXIT_USAGE, True)


def test_one_topic_is_not_two() -> None:
    """Once `topic delete -t a -t b` deleted b only."""
    result = CliRunner().invoke(minibroker, ["topic", "create", "-t", "a", "-t", "b"])
    assert (result.exit_code, "a, b: one topic at a time" in result.output) == (EXIT_USAGE, True)


@pytest.mark.parametrize("command", ["verifiable-producer", "verifiable-consumer"])
def test_verifiable_clients_take_their_topic_without_its_option(command: str) -> None:
    """Once they required -t, unlike every other command."""
    arguments = [command, "lines", "-n", "1", "-b", "127.0.0.1:1", "--timeout", "0.1"]
    assert CliRunner().invoke(minibroker, arguments).exit_code != EXIT_USAGE


@pytest.mark.parametrize(("name", "start"), [("line", "; did you mean 'lines'? `"), ("x", ". `")])
def test_an_unknown_topic_is_named_with_a_similar_one(name: str, start: str) -> None:
    text = unknown_topics([name], ["lines", "orders"])
    assert text.startswith(f"there is no topic '{name}'{start}minibroker topic list`")
    assert f"`minibroker topic create -t {name}`" in text


def leave(callback: object) -> int:
    command = click.Command("try", callback=callback)  # type: ignore[arg-type]
    with pytest.raises(SystemExit) as left:
        run_command_line(command)
    code = left.value.code
    assert isinstance(code, int)
    return code


@pytest.fixture(autouse=True)
def no_arguments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An interrupted command line ignores interrupts from then on; other tests of this process must not."""
    monkeypatch.setattr(sys, "argv", ["minibroker"])
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_failure_is_one_sentence_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise CommandFailed("it is broken: repair it")

    assert leave(fail) == EXIT_COULD_NOT
    assert capsys.readouterr() == ("", "error: it is broken: repair it\n")


@pytest.mark.parametrize("arguments", [["status", "--json"], ["consume", "-J"]])
def test_failure_is_json_if_json_was_asked_for(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["minibroker", *arguments])

    @click.command(context_settings={"ignore_unknown_options": True})
    @click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    def command(rest: tuple[str, ...]) -> None:
        raise CommandFailed("no broker answers: start one")

    with pytest.raises(SystemExit) as left:
        run_command_line(command)
    assert left.value.code == EXIT_COULD_NOT
    out, err = capsys.readouterr()
    assert (out, json.loads(err)) == ("", {"error": "no broker answers: start one", "exit_code": 1})


def test_wrong_usage_is_json_if_json_was_asked_for() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "minibroker", "offsets", "--json", "--nonsense"], capture_output=True, text=True
    )
    assert run.returncode == EXIT_USAGE
    assert json.loads(run.stderr)["exit_code"] == EXIT_USAGE
    assert "--nonsense" in json.loads(run.stderr)["error"]


@pytest.mark.parametrize(
    "arguments", ["log dump", "log verify", "log repair", "audit --engine local", "bench report", "produce -t t"]
)
def test_a_missing_path_is_a_failure_and_not_wrong_usage(arguments: str, tmp_path: Path) -> None:
    path = str(tmp_path / "nosuch")
    result = CliRunner().invoke(minibroker, [*arguments.split(), path], standalone_mode=True)
    assert result.exit_code == EXIT_COULD_NOT
    assert path in result.output


def test_an_interrupted_cluster_down_says_that_a_part_may_still_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(work: Coroutine[Any, Any, Any], *rest: object) -> None:
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setattr("minibroker.commands.cluster.run_on_cluster", interrupted)
    result = CliRunner().invoke(minibroker, ["cluster", "down", "--data-dir", str(tmp_path)])
    assert "interrupted: a part of the cluster may still run" in result.output


def test_interrupt_leaves_with_130_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    assert leave(interrupted) == EXIT_INTERRUPTED
    assert capsys.readouterr() == ("", "\n")  # the terminal has printed ^C


def test_callback_decides_the_exit_code() -> None:
    assert leave(lambda: 10) == 10
    assert leave(lambda: None) == EXIT_FINE


def run_in_shell(line: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["bash", "-c", f"{sys.executable} {line}"], capture_output=True, text=True)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_becomes_the_null_device_and_no_socket(closed: str) -> None:
    script = "import asyncio, sys, minibroker.command_line as c; c.open_standard_streams(); sys.stdin.read(); "
    script += "print(1, flush=True); print(1, file=sys.stderr); c.run_async(asyncio.sleep(0), fast_loop=True)"
    run = run_in_shell(f"-c '{script}' </dev/null {closed}")
    assert run.returncode == 0, run.stderr
    run = run_in_shell(f"-m minibroker --version {closed}")
    assert (run.returncode, run.stderr) == (EXIT_FINE, "")


@pytest.mark.parametrize("full", [">/dev/full", ">/dev/full 2>/dev/full"])
@pytest.mark.parametrize("arguments", ["--version", "--help", "bench list", "bench list --json"])
def test_a_full_disk_for_the_output_is_one_sentence(arguments: str, full: str) -> None:
    run = run_in_shell(f"-m minibroker {arguments} {full}")
    assert run.returncode == EXIT_COULD_NOT
    assert run.stderr.count("\n") == (0 if "2>" in full else 1)
    assert "2>" in full or "could not be written: No space left" in run.stderr


def test_what_is_only_buffered_on_a_full_disk_is_a_failure_too() -> None:
    script = "import click, sys, minibroker.command_line as c; "
    script += 'c.run_command_line(click.Command("x", callback=lambda: sys.stdout.write("x") and None))'
    run = run_in_shell(f"-c '{script}' >/dev/full")
    assert (run.returncode, run.stderr.count("\n")) == (EXIT_COULD_NOT, 1)


def test_an_unexpected_error_of_a_file_names_it(tmp_path: Path) -> None:
    path = tmp_path / "no" / "file"
    script = "import click, minibroker.command_line as c; "
    script += f'c.run_command_line(click.Command("x", callback=lambda: open("{path}", "w")))'
    run = run_in_shell(f"-c '{script}'")
    assert run.returncode == EXIT_COULD_NOT
    assert run.stderr == f"error: {path}: No such file or directory: check the path\n"


def test_a_name_that_is_no_text_is_one_sentence() -> None:
    run = run_in_shell("-m minibroker topic create -t $'x\\xff' --partitions 1 -b 127.0.0.1:1 --timeout 1")
    assert run.returncode in (EXIT_COULD_NOT, EXIT_USAGE)
    assert "Traceback" not in run.stderr


def test_options_take_only_finite_times() -> None:
    for name, command in all_commands():
        for param in command.params:
            if isinstance(param.type, click.FloatRange):
                for text in ("nan", "inf", "1e308", "1e9"):
                    with pytest.raises(click.BadParameter):
                        param.type.convert(float(text), param, None)
                        pytest.fail(f"{name} {param.name} takes {text}")


@pytest.mark.parametrize("server", ["h:²", "h:٣", "h:" + "1" * 5000])
def test_ports_are_short_ascii_numbers(server: str) -> None:
    result = CliRunner().invoke(minibroker, ["topic", "list", "-b", server])
    assert (result.exit_code, "HOST:PORT" in result.output) == (EXIT_USAGE, True)
    with pytest.raises(InvalidCall):
        parse_servers(server)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"brokers":{"1":{"port":1e400}}}', '{"brokers":' * 50_000])
def test_a_damaged_cluster_file_names_no_servers(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cluster.json").write_text(content)
    monkeypatch.setenv("MINIBROKER_DATA_DIR", str(tmp_path))
    assert default_servers() == "localhost:9092"
    with pytest.raises(ClusterMissing):
        read_cluster_file(tmp_path)
    result = CliRunner().invoke(minibroker, ["bench", "report", str(tmp_path / "cluster.json")])
    assert result.exit_code == EXIT_COULD_NOT
    assert "is not a document" in result.output


@pytest.mark.parametrize("seeds", ["²", "1²", "9" * 30, "1-" + "9" * 30])
def test_absurd_numbers_of_seeds_are_wrong_usage(seeds: str) -> None:
    result = CliRunner().invoke(minibroker, ["simulate", "--seeds", seeds])
    assert (result.exit_code, "give a number" in result.output) == (EXIT_USAGE, True)


def test_a_directory_is_no_input(tmp_path: Path) -> None:
    result = CliRunner().invoke(minibroker, ["produce", "-t", "t", str(tmp_path)])
    assert (result.exit_code, "is a directory" in result.output) == (EXIT_COULD_NOT, True)


def test_a_closed_pipe_is_no_failure() -> None:
    script = """if True:
        import click
        from minibroker.command_line import run_command_line

        def shout():
            for _ in range(100000):
                click.echo("x" * 100)

        run_command_line(click.Command("shout", callback=shout))
    """
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(10) == EXIT_FINE


def test_work_ends_at_its_time_limit() -> None:
    with pytest.raises(CommandFailed, match=r"waiting did not end within 0\.01 s"):
        run_async(asyncio.Event().wait(), 0.01, "waiting")


def test_table_aligns_numbers_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "COUNT"), [("a", 1), ("bcd", 1000), ("e", None)])
    assert capsys.readouterr().out == "NAME  COUNT\na         1\nbcd    1000\ne         -\n"


def test_json_keeps_bytes_that_are_not_utf8(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": "ü", "b": b"\xff".decode(errors="surrogateescape")})
    print_json({"a": "ü"})
    assert capsys.readouterr().out == '{"a": "\\u00fc", "b": "\\udcff"}\n{"a": "ü"}\n'


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (64e6, "64.0 MB"), (2.5e12, "2.5 TB")])
def test_bytes_for_people(count: float, text: str) -> None:
    assert human_bytes(count) == text


def test_a_missing_configuration_file_is_reported_in_one_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(minibroker, ["broker", "--config", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert "none cannot be read: No such file or directory. Give the broker's settings with --config" in result.output


def test_cluster_start_starts_what_is_named_or_all_that_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it took one broker only, and there was no way to start ZooKeeper again."""
    write_cluster_file(tmp_path, LocalCluster(tmp_path, 3, port=19_092, zookeeper_port=12_181).record)
    started: list[object] = []

    async def start(_: LocalCluster, broker_id: int, timeout_s: float) -> None:
        started.append(broker_id)

    async def start_zookeeper(_: LocalCluster, timeout_s: float) -> None:
        started.append("zookeeper")
        monkeypatch.setattr(ClusterZooKeeper, "is_running", lambda _: True)

    monkeypatch.setattr(LocalCluster, "start", start)
    monkeypatch.setattr(LocalCluster, "start_zookeeper", start_zookeeper)
    command = ["cluster", "start", "--data-dir", str(tmp_path)]
    assert "ZooKeeper at 127.0.0.1:12181 is down" in CliRunner().invoke(minibroker, [*command, "2"]).output
    result = CliRunner().invoke(minibroker, command)
    assert started == ["zookeeper", 1, 2, 3]
    assert "zookeeper: started, address: 127.0.0.1:12181\nbroker 1: started" in result.output
    started.clear()
    CliRunner().invoke(minibroker, [*command, "3", "1", "3"])
    assert started == [3, 1]


def test_a_setting_that_no_broker_takes_leaves_nothing_behind(tmp_path: Path) -> None:
    """Once brokers were started, and the setting was kept: it failed the next `up`, too."""
    directory = tmp_path / "data"
    result = CliRunner().invoke(
        minibroker, ["cluster", "up", "--data-dir", str(directory), "--set", "flush.messages=1"]
    )
    assert result.exit_code == EXIT_USAGE
    assert "broker 1 would not start: --set: flush.messages is a setting of topics" in result.output
    assert not directory.exists()


def test_progress_is_cut_to_the_terminal_because_wrapped_lines_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 20))
    with os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        progress = ProgressLine(after_s=0.0)
        progress.show("0123456789" * 3)
        assert os.read(reading, 100) == b"\r\x1b[K0123456789012345678"
        progress.clear()
        assert os.read(reading, 100) == b"\r\x1b[K"
    os.close(reading)


def test_a_broker_that_cannot_be_one_is_a_usage_error(tmp_path: Path) -> None:
    async def resolve() -> None:
        raise BadBrokerName("'boss' is not a broker")

    with pytest.raises(WrongUsage, match="'boss' is not a broker"):
        run_on_cluster(resolve(), tmp_path, 5, "cluster kill")


@pytest.mark.parametrize("words", [["--json", "topic", "list"], ["-b", "h:1", "replicas"]])
def test_an_option_in_front_of_the_command_is_told_its_place(words: list[str]) -> None:
    run = CliRunner().invoke(minibroker, words)
    assert run.exit_code == EXIT_USAGE
    assert f"{words[0]} goes behind the command: minibroker COMMAND {words[0]}" in run.output
    assert "No such option '--hlp'. Did you mean '--help'?" in CliRunner().invoke(minibroker, ["--hlp"]).output


def test_a_time_that_is_none_is_named_as_it_was_given() -> None:
    run = CliRunner().invoke(offsets, ["lines", "--at", "junk"])
    assert "'junk' is not a time" in run.output


def test_a_setting_of_a_topic_is_named_as_in_other_commands() -> None:
    run = CliRunner().invoke(create, ["lines", "--set", "junk"])
    assert "'junk' is not KEY=VALUE" in run.output
