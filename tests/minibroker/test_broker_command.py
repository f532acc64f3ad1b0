"""`minibroker broker`: which configuration files it reads."""

import json
import logging
import os
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.commands.broker import CONFIG_BYTES_MAX, NECESSARY_SETTINGS, broker

SETTINGS = "\n".join(NECESSARY_SETTINGS) + "\n#"


@pytest.mark.parametrize(("bytes_more", "code"), [(0, 0), (1, 1)])
def test_a_configuration_file_has_a_limit(tmp_path: Path, bytes_more: int, code: int) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(SETTINGS.ljust(CONFIG_BYTES_MAX + bytes_more, "x"))
    result = CliRunner().invoke(broker, ["--print-config", "--config", str(file)])
    assert result.exit_code == code
    assert ("it has more than 1048576 bytes. Give" in result.output) is bool(bytes_more)


def test_an_error_at_the_start_is_an_object_with_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """A locked directory ended it with lines of the log alone."""

    def run_broker(*_: object) -> int:
        logging.getLogger("minibroker").error("broker %d: %s", 1, "logs is locked")
        return 1

    monkeypatch.setattr("minibroker.broker.__main__.run_broker", run_broker)
    arguments = [word for setting in NECESSARY_SETTINGS for word in ("--set", setting)]
    result = CliRunner().invoke(broker, ["--json", *arguments], standalone_mode=False)
    assert result.return_value == 1
    assert json.loads(result.stderr.splitlines()[-1]) == {"error": "broker 1: logs is locked", "exit_code": 1}


def test_a_huge_file_and_one_without_an_end_take_no_memory(tmp_path: Path) -> None:
    huge = tmp_path / "huge.conf"
    huge.touch()
    os.truncate(huge, 1 << 30)
    for file in (str(huge), "/dev/zero"):
        tracemalloc.start()
        result = CliRunner().invoke(broker, ["--print-config", "--config", file])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (result.exit_code, peak < 16 * CONFIG_BYTES_MAX) == (1, True), (result.output, peak)
