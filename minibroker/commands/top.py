"""`minibroker top`: the live table of replicas, with a line for each election, truncation and ISR change.

The table is asked for again and again; the lines are events of the brokers (`observation/cluster_changes.py`). What of
both fits the terminal is decided in `observation/top_screen.py`.
"""

import contextlib
import os
import sys
from collections import deque
from collections.abc import Coroutine, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from minibroker.command_line import (
    EXIT_FINE,
    SECONDS_MAX,
    CommandFailed,
    Seconds,
    bootstrap_option,
    json_option,
    note,
    print_json,
    require_reader,
    run_async,
    timeout_option,
    topics_option,
)
from minibroker.protocol.printable_text import printable

if TYPE_CHECKING:
    from rich.console import ConsoleDimensions

    from minibroker.observation.cluster_changes import ClusterChange
    from minibroker.observation.cluster_view import ClusterView

EVENTS_SHOWN = 12
SILENCE_SHOWN_S = 1.0
"""A new controller, or one slow answer, takes less."""
SIDE_MAX = 1_000
"""Lines or columns of a terminal: more than any has."""
KEY_BYTES = 1_024
"""More keys than a person presses between two looks at them."""


@click.command()
@bootstrap_option
@topics_option(required=False)
@click.option(
    "--interval", "interval_s", type=Seconds(0.05, SECONDS_MAX), default=0.5, show_default=True, metavar="SECONDS"
)
@click.option("-n", "--looks", type=click.IntRange(1), help="End after this many updates.  [default: at q or Ctrl-C]")
@timeout_option(10, "Give up when no broker has answered for this many seconds.")
@json_option
def top(
    bootstrap_servers: str,
    topics: tuple[str, ...],
    interval_s: float,
    looks: int | None,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Watch the replicas live, with each election and truncation.

    q or Ctrl-C ends it. A small terminal shows fewer columns, and replicas out of sync first. LAG of a replica that
    does not answer is what its leader knows: '-' nothing, '5+' at least 5. Without a terminal, or with --json, only the
    events are printed, one per line, as they come.
    """
    screen: LiveScreen | EventLines = EventLines(as_json) if as_json or not _can_draw() else LiveScreen()
    with _ending_tidily(screen), screen:
        watching = _watch(bootstrap_servers, list(topics) or None, interval_s, looks, timeout_s, screen)
        run_async(_until_q(watching) if isinstance(screen, LiveScreen) and sys.stdin.isatty() else watching)
    return EXIT_FINE


def _can_draw() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


async def _until_q(watching: Coroutine[Any, Any, object]) -> None:
    """Await it until the user types q or closes the terminal."""
    import asyncio

    task = asyncio.ensure_future(watching)
    is_over = False

    def read_keys() -> None:
        nonlocal is_over
        try:
            typed = os.read(sys.stdin.fileno(), KEY_BYTES)
        except OSError:
            typed = b""
        if not typed or b"q" in typed.lower():  # nothing: the terminal is gone, and would be readable for ever
            is_over = True
            task.cancel()

    with _single_keys():
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), read_keys)
        try:
            await task
        except asyncio.CancelledError:
            if not is_over:
                raise
        finally:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())


def _ending_tidily(screen: "LiveScreen | EventLines") -> contextlib.AbstractContextManager[object]:
    """On a screen of its own, SIGTERM and SIGHUP act as Ctrl-C: else the terminal would stay on that screen and show no
    key that is typed."""
    from minibroker.local_cluster.teardown import Ownership

    return Ownership(lambda: None) if isinstance(screen, LiveScreen) else contextlib.nullcontext()


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """The terminal hands over each key at once and shows none; Ctrl-C works as ever."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


async def _watch(
    servers: str,
    topics: list[str] | None,
    interval_s: float,
    looks: int | None,
    timeout_s: float,
    screen: "LiveScreen | EventLines",
) -> None:
    import asyncio

    from minibroker.commands.replicas import require_described
    from minibroker.observation.broker_queries import NoAnswer
    from minibroker.observation.cluster_changes import ClusterWatch
    from minibroker.opened_client import FIRST_ANSWER_MS

    loop = asyncio.get_running_loop()
    answered, patience_s = loop.time(), min(FIRST_ANSWER_MS / 1000, timeout_s)
    done = 0
    async with ClusterWatch("minibroker-top", servers) as watch:
        while looks is None or done < looks:
            try:
                view, changes = await watch.look(topics, min(2.0, timeout_s))
            except NoAnswer as error:
                if loop.time() - answered > patience_s or (not done and error.is_refused):
                    raise CommandFailed(str(error)) from None
                screen.show_silence(loop.time() - answered)
                await asyncio.sleep(interval_s)
                continue
            if not done:
                await require_described(view, topics, servers)
            answered, patience_s = loop.time(), timeout_s
            screen.show(view, changes)
            done += 1
            if looks is None or done < looks:
                await asyncio.sleep(interval_s)


class EventLines:
    """Events only, one per line."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._has_begun = False

    def __enter__(self) -> "EventLines":
        return self

    def __exit__(self, *details: object) -> None:
        sys.stdout.flush()

    def show(self, view: "ClusterView", changes: "list[ClusterChange]") -> None:
        import msgspec

        require_reader()
        if not self._has_begun:  # there may be no event for hours
            self._has_begun = True
            note("only events are printed, as they come: `minibroker replicas` prints the replicas")
        for change in changes:
            moment = datetime.fromtimestamp(change.at_ms / 1000).astimezone()
            if self._as_json:
                fields = msgspec.to_builtins(change)
                del fields["at_ms"]
                print_json({"time": moment.isoformat(timespec="milliseconds"), **fields})
            else:
                click.echo(f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}  {printable(change.what)}")

    def show_silence(self, seconds: float) -> None:
        """No event says so."""


class LiveScreen:
    """A live table, with the newest events below it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._events: deque[str] = deque(maxlen=EVENTS_SHOWN)
        self._view: ClusterView | None = None
        """The one that is shown."""
        self._live = Live(console=Console(), auto_refresh=False, screen=True)
        self._bounded_size()

    def __enter__(self) -> "LiveScreen":
        self._live.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._live.__exit__(None, None, None)
        for event in self._events:  # the alternate screen is gone: print the events on the real one
            click.echo(printable(event))

    def show(self, view: "ClusterView", changes: "list[ClusterChange]") -> None:
        self._view = view
        times = [datetime.fromtimestamp(change.at_ms / 1000) for change in changes]
        self._events.extend(f"{at:%H:%M:%S}  {each.what}" for at, each in zip(times, changes, strict=True))
        brokers = ", ".join(f"{b.broker_id}{'' if b.description else ' (no answer)'}" for b in view.brokers)
        self._draw(view, f"brokers {brokers}  controller {view.controller_id}")

    def show_silence(self, seconds: float) -> None:
        """Say how old the picture is."""
        if self._view is not None and seconds >= SILENCE_SHOWN_S:
            self._draw(self._view, f"no broker has answered for {seconds:.0f} s: this is from before")

    def _draw(self, view: "ClusterView", what: str) -> None:
        from rich.text import Text

        from minibroker.observation.replica_table import replica_rows
        from minibroker.observation.top_screen import screen

        title = f"{datetime.fromtimestamp(view.taken_at):%H:%M:%S}  {what}  (q ends)"
        size = self._bounded_size()
        lines = screen(title, replica_rows(view), self._events, size.width, size.height)
        shown = Text("\n", no_wrap=True, overflow="crop").join(Text(line.text, style=line.style) for line in lines)
        self._live.update(shown, refresh=True)

    def _bounded_size(self) -> "ConsoleDimensions":
        """Every cell is drawn, and a terminal, or the variables LINES and COLUMNS, may claim billions."""
        from rich.console import ConsoleDimensions

        console = self._live.console
        if max(console.size) > SIDE_MAX:
            console.size = ConsoleDimensions(*(min(each, SIDE_MAX) for each in console.size))
        return console.size
