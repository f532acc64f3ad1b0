"""Addresses, names and settings that no broker could be asked with are refused at once, in plain words."""

import pytest
from click.testing import CliRunner

from minibroker.__main__ import minibroker
from minibroker.command_line import EXIT_USAGE


@pytest.mark.parametrize("servers", ["a:b", ":9092", "host:0", "host:70000", ","])
def test_malformed_servers_are_usage_errors(servers: str) -> None:
    assert CliRunner().invoke(minibroker, ["replicas", "-b", servers]).exit_code == EXIT_USAGE


def test_a_url_is_no_server() -> None:
    """Once the host `http://127.0.0.1` was looked up for ten seconds."""
    result = CliRunner().invoke(minibroker, ["topic", "list", "-b", "http://127.0.0.1:9092"])
    assert result.exit_code == EXIT_USAGE
    assert "is a URL: give HOST:PORT alone" in result.output


@pytest.mark.parametrize("server", ["a\nb:9092", "a b", "a\tb:9092"])
def test_white_space_within_a_server_is_quoted_in_one_line(server: str) -> None:
    """The newline of a list of one server a line split the error."""
    result = CliRunner().invoke(minibroker, ["topic", "list", "-b", server])
    assert result.exit_code == EXIT_USAGE
    assert f"{server!r} is not HOST:PORT" in result.output


@pytest.mark.parametrize(
    "arguments",
    [["topic", "create", "t\udcff"], ["topic", "create", "t", "--set", "k=\udcff"], ["produce", "t\udcff"]],
)
def test_a_name_or_a_setting_that_is_not_utf_8_is_told_before_a_broker_is_asked(arguments: list[str]) -> None:
    """It was told what Python's encoder cannot write."""
    result = CliRunner().invoke(minibroker, [*arguments, "-b", "127.0.0.1:1"])
    assert result.exit_code == EXIT_USAGE
    assert "is not UTF-8" in result.output
