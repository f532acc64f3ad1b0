"""`minibroker broker`: one broker in the foreground."""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from minibroker.command_line import EXIT_FINE, CommandFailed, WrongUsage, json_option, print_error, print_json

NECESSARY_SETTINGS = ("broker.id=1", "log.dirs=logs", "zookeeper.connect=localhost:2181")
"""Every broker needs them, so other settings are checked together with them, where a cluster gives its own later."""

CONFIG_BYTES_MAX = 1024 * 1024
"""A file with every setting and its description has a few KiB."""


@click.command()
@click.option(
    "--config",
    "config_file",
    envvar="MINIBROKER_CONFIG",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of key=value lines, with Kafka's dotted names. [default: $MINIBROKER_CONFIG]",
)
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Overrides file and environment.")
@click.option(
    "--log-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write all output to this file; it is rotated at 10 MiB, and four older files are kept. [default: stderr]",
)
@click.option(
    "--log-format",
    envvar="MINIBROKER_LOG_FORMAT",
    type=click.Choice(["text", "json"], case_sensitive=False),
    default="text",
    show_default=True,
    help="json: one object per line, with the typed events of docs/EVENTS.md.",
)
@click.option("--print-config", is_flag=True, help="Print each setting with its value and source; do not start.")
@json_option
def broker(
    config_file: Path | None,
    settings: tuple[str, ...],
    log_file: Path | None,
    log_format: str,
    print_config: bool,
    as_json: bool,
) -> int:
    """Run one broker in the foreground.

    Settings come from --set, then the environment (MINIBROKER_BROKER_ID=1 for broker.id), then --config. SIGTERM or
    Ctrl-C hands leadership over and stops cleanly.
    """
    from minibroker.broker.configuration.config import ConfigError, describe, load_config

    text = None if config_file is None else _read_settings(config_file)
    try:
        config = load_config(text, settings, os.environ, str(config_file))
    except ConfigError as error:
        raise WrongUsage(str(error)) from None
    if not print_config:
        from minibroker.broker.__main__ import run_broker

        last_error = _LastError(logging.ERROR)
        logging.getLogger("minibroker").addHandler(last_error)
        try:
            code = run_broker(config, None if log_file is None else str(log_file), log_format)
        except OSError as error:
            raise CommandFailed(f"the log cannot be written to {log_file}: {error.strerror}") from None
        if code and as_json:
            print_error(last_error.text, code, as_json=True)
        return code
    for setting in describe(config):
        if as_json:
            print_json({"name": setting.name, "value": setting.value, "source": setting.source, "doc": setting.doc})
        else:
            click.echo(f"{setting.name}={setting.value}  # {setting.source}")
    return EXIT_FINE


class _LastError(logging.Handler):
    """Keeps the last error that is logged: a broker ends with it."""

    text = "the broker ended with an error: its log says why"

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


def _read_settings(file: Path) -> str:
    """The text of a file or a pipe; of one that does not end, only as much as could be settings."""
    try:
        with file.open("rb") as opened:
            content = opened.read(CONFIG_BYTES_MAX + 1)
        if len(content) <= CONFIG_BYTES_MAX:
            return content.decode()
        why = f"it has more than {CONFIG_BYTES_MAX} bytes"
    except (OSError, UnicodeDecodeError) as error:
        why = str(error.strerror) if isinstance(error, OSError) else "it is not UTF-8"
    raise CommandFailed(f"{file} cannot be read: {why}. Give the broker's settings with --config FILE")


def problem_of_settings(settings: Sequence[str], environment: Mapping[str, str] | None = None) -> str | None:
    """Why a broker would refuse these settings, each name=value, or variables; None if it would start."""
    from minibroker.broker.configuration.config import ConfigError, load_config

    try:
        load_config(settings=settings, environment=environment)
    except ConfigError as error:
        return str(error)
    return None
