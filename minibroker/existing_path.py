"""A path that a command is given, and reads."""

import os
from typing import Any

import click

from minibroker.command_line import NO_RIGHT_CURE, CommandFailed


class ExistingPath(click.Path):
    """A path that must exist. If it does not, every command exits with 1: that is a failure, not a usage error."""

    def __init__(self, **options: Any) -> None:
        super().__init__(exists=True, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        name = os.fsdecode(value)
        try:
            os.lstat(value)
            may_read = os.access(value, os.R_OK) or not os.path.exists(value)
        except PermissionError:  # of a directory above it
            may_read = False
        except (OSError, ValueError):
            raise CommandFailed(f"there is no {name}: check the path") from None
        if not may_read:
            raise CommandFailed(f"{name} cannot be read (Permission denied): {NO_RIGHT_CURE}")
        if not self.dir_okay and os.path.isdir(value):
            raise CommandFailed(f"{name} is a directory: name a file")
        return super().convert(value, param, ctx)
