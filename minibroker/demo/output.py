"""The demo's output: each step with its time, progress of long steps, and the verdict.

Owns: the demo's clock, its output with and without a terminal, and the list of checks. Leaves to others: the steps.
"""

import sys
import time

import click
import msgspec

from minibroker.command_line import ProgressLine, print_table

PLAIN_PROGRESS_EVERY_S = 5.0
"""Without a terminal (CI), progress is one line per interval."""


class Check(msgspec.Struct, frozen=True):
    """Something that must hold."""

    name: str
    held: bool
    detail: str


class DemoOutput:
    """Prints steps and checks while they happen; `print_summary` repeats the checks as a table."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._line = ProgressLine()
        self._next_plain = time.monotonic() + PLAIN_PROGRESS_EVERY_S
        self.checks: list[Check] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def all_held(self) -> bool:
        return bool(self.checks) and all(check.held for check in self.checks)

    def tell(self, what: str) -> None:
        """Print a step."""
        self._print(self.seconds, what)

    def check(self, name: str, held: bool, detail: str) -> bool:
        """Note and print whether something holds."""
        self.checks.append(Check(name, held, detail))
        result = click.style("held", fg="green") if held else click.style("DID NOT HOLD", fg="red", bold=True)
        self._print(self.seconds, f"{name}: {result} ({detail})")
        return held

    def progress(self, text: str) -> None:
        """Show the progress of a long step."""
        if self._line.enabled:
            self._line.show(f"{self.seconds:6.1f} s  {text}")
        elif time.monotonic() >= self._next_plain:
            self._next_plain = time.monotonic() + PLAIN_PROGRESS_EVERY_S
            self._print(self.seconds, f".. {text}")

    def end_progress(self) -> None:
        self._line.clear()

    def _print(self, seconds: float, text: str) -> None:
        self._line.clear()
        self._next_plain = time.monotonic() + PLAIN_PROGRESS_EVERY_S
        click.echo(f"{seconds:6.1f} s  {text}")
        sys.stdout.flush()

    def print_summary(self, stopped_by: Exception | None = None) -> None:
        """Print the table of checks, and the verdict."""
        self._line.clear()
        click.echo()
        print_table(
            ("PROMISE", "HELD", "EVIDENCE"),
            [(check.name, "yes" if check.held else "NO", check.detail) for check in self.checks],
        )
        failed = [check.name for check in self.checks if not check.held]
        if stopped_by is not None:
            failed.append(f"it did not get to the end: {stopped_by}")
        click.echo()
        if self.all_held and stopped_by is None:
            click.secho(f"verdict: all of it held, in {self.seconds:.0f} s", fg="green", bold=True)
        else:
            click.secho(f"verdict: FAILED: {'; '.join(failed)}", fg="red", bold=True)
