"""How every command behaves: lazy groups, exit codes, errors, JSON, tables, time limits, Ctrl-C, broken pipes.

Owns: the conventions of the command line. Leaves to others: the commands, the client and the cluster. It imports no
heavy package but click, because `minibroker --help` would pay for it (tests/minibroker/test_import_time.py).

Exit codes: 0 success, 1 failure, 2 usage error, 10 the check ran and found a problem, 130 stopped by Ctrl-C, or by
SIGTERM while the command starts or owns a cluster.
"""

import errno
import functools
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import closing
from importlib import import_module
from typing import Any, NoReturn, TypeVar, cast

import click

from minibroker.protocol import similar_names
from minibroker.protocol.printable_text import printable, printable_lines
from minibroker.shortened_text import shortened

EXIT_FINE = 0
EXIT_COULD_NOT = 1
EXIT_USAGE = 2
EXIT_FOUND_WRONG = 10
EXIT_INTERRUPTED = 130

DEFAULT_BOOTSTRAP_SERVERS = "localhost:9092"
DEFAULT_DATA_DIRECTORY = "./minibroker-data"
JSON_OPTIONS = frozenset({"--json", "-J"})
PROGRESS_AFTER_S = 2.0
"""Progress of shorter work would be gone before it could be read."""
PROGRESS_WIDTH = 80
PROGRESS_EVERY_S = 0.2
SECONDS_MAX = 2_147_483
"""Longest time of an option, 24 days: a request has 32 bits for its milliseconds."""
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_RIGHT_CURE = "run this as its owner, or get the right to it"

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class CommandFailed(click.ClickException):
    """The command failed. The message is one sentence that ends with the cure."""

    exit_code = EXIT_COULD_NOT

    def show(self, file: Any = None) -> None:
        message = printable_lines(self.message)
        click.echo(f"{click.style('error:', fg='red')} {message}", err=True, color=None if has_colour() else False)


class WrongUsage(CommandFailed):
    """An option's value or a configuration is invalid."""

    exit_code = EXIT_USAGE


class LazyGroup(click.Group):
    """A group that imports a command's file only when that command runs.

    `lazy` maps a command's name to (module:attribute, one-line help). The help is repeated here so that listing the
    commands imports none of them. A test checks that the two texts are equal.
    """

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy, *sorted(self.commands)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.lazy and args[0] not in self.commands and not args[0].startswith("-"):
            raise click.UsageError(_unknown_command(args[0], self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])


def _unknown_command(name: str, known: Sequence[str]) -> str:
    return f"there is no command '{name}'{suggestion(name, known)}"


def suggestion(name: str, known: Sequence[str]) -> str:
    """The end of a message about a name that does not exist; empty if no name is similar."""
    return f"; {meant}" if (meant := similar_names.suggestion(name, known)) else ""


def run_command_line(command: click.Command) -> NoReturn:
    """Run `command` with this process's arguments and exit with its code; user errors print no traceback."""
    open_standard_streams()
    stdout = sys.stdout
    try:
        code = command.main(prog_name="minibroker", standalone_mode=False, color=None if has_colour() else False)
        sys.stdout.flush()
    except click.ClickException as error:
        _show(error)
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another one has nothing left to end
        code = EXIT_INTERRUPTED
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "minibroker":
            raise
        missing = f"the package {error.name} is not installed for {sys.executable}"
        _show(CommandFailed(f"{missing}: run `make setup`, or pip install 'minibroker[spark]'"))
        code = EXIT_COULD_NOT
    except BrokenPipeError:
        code = EXIT_FINE  # the reader (head, less) has read enough
    except OSError as error:
        _show(_failed_call(error))
        code = EXIT_COULD_NOT
    except UnicodeEncodeError as error:
        _show(WrongUsage(f"{error.object!a:.80} cannot be written as {error.encoding}: give text in UTF-8"))
        code = EXIT_USAGE
    except SystemExit:
        if sys.stdout is stdout:  # click replaces it when the pipe is broken
            raise
        code = EXIT_FINE
    if isinstance(code, bool) or not isinstance(code, int):
        code = EXIT_FINE
    _leave(code)


def has_colour() -> bool:
    """There is colour on a terminal, unless NO_COLOR is set (no-color.org) or the terminal knows no escapes."""
    return not os.environ.get("NO_COLOR") and not _is_dumb()


def _is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"


def open_standard_streams() -> None:
    """Open /dev/null for stdin, stdout and stderr where the process was started without them (`>&-`). Otherwise the
    next socket or file gets the number: uvloop then ends the process, and a child's output goes into that file."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _failed_call(error: OSError) -> CommandFailed:
    """A call of the operating system that no command expected to fail: an output on a full disk, a path."""
    reason = error.strerror or str(error) or type(error).__name__
    if isinstance(error, TimeoutError) and not error.errno:  # of a wait of ours, not of the system
        return CommandFailed("a step did not end in time: run it again when this machine has less to do")
    if error.filename is not None:
        cure = NO_RIGHT_CURE if isinstance(error, PermissionError) else "check the path"
        return CommandFailed(f"{os.fsdecode(error.filename)}: {reason}: {cure}")
    if error.errno in NO_SPACE:
        return CommandFailed(f"the output could not be written: {reason}: free space, or write it elsewhere")
    return CommandFailed(f"reading or writing failed: {reason}: check the input and the output")


def _show(error: click.ClickException) -> None:
    """Print an error on stderr, if that can be written; as JSON if an argument asks for it, even if the arguments could
    not be parsed."""
    error.message = shortened(error.message)  # type: ignore[misc]  # declared final, and any text fits
    try:
        if not JSON_OPTIONS.intersection(sys.argv[1:]):
            error.show()
        else:
            print_error(error.format_message(), error.exit_code, as_json=True)
    except OSError:
        pass  # the exit code is left


def exit_with(code: object, **parameters: object) -> None:
    """Result callback of the outermost group: a command returns its exit code."""
    if isinstance(code, int) and not isinstance(code, bool):
        click.get_current_context().exit(code)


def _leave(code: int) -> NoReturn:
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            # so that the interpreter's own last flush finds neither a broken pipe nor a full disk
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            if code == EXIT_FINE and isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                _show(_failed_call(error))
                code = EXIT_COULD_NOT
    raise SystemExit(code)


# ---------------------------------------------------------------------------------------------------------- options
def bootstrap_option(function: F) -> F:
    """`-b`: the brokers to ask first."""
    return click.option(
        "-b",
        "--bootstrap-servers",
        "bootstrap_servers",
        metavar="HOST:PORT,...",
        envvar="MINIBROKER_BOOTSTRAP_SERVERS",
        default=default_servers,
        show_default=f"the cluster in ./minibroker-data, else {DEFAULT_BOOTSTRAP_SERVERS}",
        callback=_check_servers,
        help="Brokers to ask first; one that answers is enough.",
    )(function)


def default_servers(directory: str | None = None) -> str:
    """All brokers of the cluster that `cluster up` started here, because any of them may be down; else one address."""
    directory = directory or os.environ.get("MINIBROKER_DATA_DIR") or DEFAULT_DATA_DIRECTORY
    try:
        with open(os.path.join(directory, "cluster.json"), "rb") as file:
            import json

            brokers = json.load(file)["brokers"]
            return ",".join(f"127.0.0.1:{int(brokers[number]['port'])}" for number in sorted(brokers))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return DEFAULT_BOOTSTRAP_SERVERS


def _check_servers(ctx: click.Context, param: click.Parameter, value: str) -> str:
    servers = [server.strip() for server in value.split(",") if server.strip()]
    if not servers:
        raise click.BadParameter("does not name a server: give HOST:PORT,...")
    return ",".join(with_port(server) for server in servers)


def with_port(server: str, port: int = 9092) -> str:
    """`host` or `host:port` as host:port. Raises BadParameter unless the port is a number from 1 to 65535."""
    if "://" in server:
        raise click.BadParameter(f"'{server}' is a URL: give HOST:PORT alone, e.g. localhost:9092")
    if not server.isprintable() or " " in server:
        raise click.BadParameter(f"{server!r} is not HOST:PORT")
    host, colon, text = server.rpartition(":")
    if not colon or server.endswith("]"):
        return f"{server}:{port}"
    if not is_whole_number(text) or not 0 < int(text) < 65536 or not host:
        raise click.BadParameter(f"'{server}' is not HOST:PORT")
    return server


def named_values(texts: Sequence[str], option: str, form: str = "KEY=VALUE") -> dict[str, str]:
    """The texts `name=value` of a repeatable option. Raises BadParameter without `=`, and for a name given twice."""
    from minibroker.long_names import require_utf8

    for text in texts:
        require_utf8(text, option)
    pairs = [text.partition("=") for text in texts]
    for number, (name, equals, _) in enumerate(pairs):
        if not equals or name in (earlier for earlier, _, _ in pairs[:number]):
            problem = f"{name} is given twice: give one value" if equals else f"'{name}' is not {form}"
            raise click.BadParameter(problem, param_hint=option)
    return {name: value for name, _, value in pairs}


def is_whole_number(text: str) -> bool:
    """Whether `int` takes it: it refuses some other digits (`²`) and thousands of them. At most
    18, so that sums and lengths fit into 64 bits."""
    return text.isascii() and text.isdigit() and len(text) <= 18


class Seconds(click.FloatRange):
    """A finite time of at most SECONDS_MAX; click lets `nan` pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return found


def timeout_option(default: float, text: str = "Give up after this many seconds.") -> Callable[[F], F]:
    """`--timeout`: every command that waits has one."""
    return click.option(
        "--timeout",
        "timeout_s",
        metavar="SECONDS",
        type=Seconds(min=0, max=SECONDS_MAX, min_open=True),
        default=default,
        show_default=True,
        help=text,
    )


def topics_option(*, required: bool = True, one: bool = False) -> Callable[[F], F]:
    """`-t TOPIC`, or TOPIC alone: the command gets `topics`, each of them once."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_topics(*arguments: Any, topics: tuple[str, ...], named: tuple[str, ...], **options: Any) -> Any:
            from minibroker.long_names import refuse_impossible_topics

            found = tuple(dict.fromkeys((*topics, *named)))
            refuse_impossible_topics(found)
            if required and not found:
                raise click.UsageError("which topic? Give -t TOPIC")
            if one and len(found) > 1:
                raise click.BadParameter(f"{', '.join(found)}: one topic at a time", param_hint="-t")
            return function(*arguments, topics=found, **options)

        count = "Exactly one." if one else "May be given several times." if required else "[default: all topics]"
        argument = click.argument("named", nargs=-1, metavar="[TOPIC]" if one else "[TOPIC]...")(with_topics)
        return cast("F", click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", help=count)(argument))

    return decorate


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="One JSON object per line on stdout.")(function)


# ----------------------------------------------------------------------------------------------------------- output
def print_json(value: Any) -> None:
    """One JSON object on one line of stdout."""
    import json

    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # not UTF-8: decoded with surrogate escapes
        text = json.dumps(value)
    # json.dumps leaves control characters beyond ASCII as they are, and those that turn the direction of a line
    click.echo(text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text))


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns on stdout; the header stands out on a terminal. Numbers are right-aligned."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    numeric = [bool(cells) and all(is_number(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    click.secho(line(header), bold=True)
    for row in cells:
        click.echo(line(row))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return printable(",".join(map(str, value))) or "-"
    return printable(str(value))


def is_number(cell: str) -> bool:
    """Also `5+`, a lower bound."""
    return cell == "-" or cell.lstrip("-").removesuffix("+").replace(".", "", 1).isdigit()


def note(text: str) -> None:
    """Print a remark for the user on stderr, never on stdout."""
    click.echo(printable_lines(text), err=True)


def print_error(text: str, exit_code: int, as_json: bool) -> None:
    """Print an error on stderr that does not end the command at once: it has more to say."""
    import json

    if as_json:
        click.echo(json.dumps({"error": shortened(text), "exit_code": exit_code}), err=True)
    else:
        CommandFailed(shortened(text)).show()


def warn(text: str) -> None:
    click.echo(f"{click.style('warning:', fg='yellow')} {printable_lines(text)}", err=True)


def require_reader() -> None:
    """Raise BrokenPipeError if the reader of stdout has ended. A command that prints now and then would learn that with
    its next line only. Needs `poll`, so not on Windows; a terminal or a file always has a reader."""
    import select

    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)
        is_closed = any(event & select.POLLERR for _, event in watched.poll(0))
    except (AttributeError, OSError, ValueError):
        return
    if is_closed:
        raise BrokenPipeError


class ProgressLine:
    """One line on stderr that is overwritten. Shown only on a terminal, and only if the work takes a while."""

    def __init__(self, after_s: float = PROGRESS_AFTER_S, every_s: float = PROGRESS_EVERY_S) -> None:
        """`every_s` 0: each text is shown, for steps of which one may take long."""
        self.enabled = sys.stderr.isatty() and not _is_dumb()
        self._every_s = every_s
        self._next = time.monotonic() + after_s
        self._shown = False

    def due(self) -> bool:
        """Is it time to show something? Lets callers skip the formatting."""
        return self.enabled and time.monotonic() >= self._next

    def show(self, text: str) -> None:
        if not self.due():
            return
        self._next = time.monotonic() + self._every_s
        self._shown = True
        sys.stderr.write(f"\r\x1b[K{printable(text)[: self._width() - 1]}")  # what wraps could not be erased
        sys.stderr.flush()

    @staticmethod
    def _width() -> int:
        """A terminal need not know its width."""
        try:
            return os.get_terminal_size(sys.stderr.fileno()).columns or PROGRESS_WIDTH
        except OSError:
            return PROGRESS_WIDTH

    def clear(self) -> None:
        """Erase the line before other output."""
        if self._shown:
            self.erase()
            self._shown = False

    @staticmethod
    def erase() -> None:
        """Erase what is in the present line of the terminal."""
        if sys.stderr.isatty() and not _is_dumb():
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def human_bytes(count: float) -> str:
    """`64.0 MB`: in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


# ---------------------------------------------------------------------------------------------------------- running
def run_async(
    work: Coroutine[Any, Any, T], timeout_s: float | None = None, doing: str = "the command", *, fast_loop: bool = False
) -> T:
    """Run `work` on a new event loop within the time limit. Ctrl-C cancels it and raises KeyboardInterrupt.

    `fast_loop` uses uvloop, which takes some milliseconds to import: for commands that move records.
    """
    with closing(work):  # Ctrl-C may come before it begins, and Python warns of a coroutine that never does
        import asyncio

        async def bounded() -> T:
            deadline = asyncio.timeout(timeout_s)
            try:
                async with deadline:
                    return await work
            except TimeoutError:
                if not deadline.expired():
                    raise
                what = f"{doing} did not end within {timeout_s:g} s"
                raise CommandFailed(f"{what}: run `minibroker doctor`, or give a longer --timeout") from None

        factory = None
        if fast_loop:
            import uvloop

            factory = uvloop.new_event_loop
        with closing(bounded()) as all_of_it, asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(all_of_it)
