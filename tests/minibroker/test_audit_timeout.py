"""What ends an audit that hangs, wherever it waits: `--timeout`, with one sentence, and SIGTERM."""

import signal
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from minibroker.audit import run
from minibroker.audit.reports.report import AuditReport
from minibroker.commands.audit import audit


def test_an_audit_that_hangs_in_code_that_catches_errors_still_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_as_py4j_does(*_: object, **__: object) -> AuditReport:
        try:
            while True:
                pass
        except Exception as error:
            raise ConnectionError("Error while sending or receiving") from error

    monkeypatch.setattr(run, "run_audit", wait_as_py4j_does)
    ended = CliRunner().invoke(audit, [str(tmp_path), "--engine", "local", "--timeout", "1"])
    assert ended.output.strip().endswith(
        "the audit did not end within 1 s: give a longer --timeout, or fewer directories"
    )
    assert "interrupted" not in ended.output
    assert ended.exit_code == 1


def test_sigterm_ends_it_as_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It left a JVM that was starting, and its directory, for ever."""
    is_cleaned = []
    before = signal.getsignal(signal.SIGTERM)

    def end(*_: object, **__: object) -> AuditReport:
        try:
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError
        finally:
            is_cleaned.append(True)

    monkeypatch.setattr(run, "run_audit", end)
    with pytest.raises(click.Abort):
        audit.main([str(tmp_path), "--engine", "local"], standalone_mode=False)
    assert is_cleaned
    assert signal.getsignal(signal.SIGTERM) is before
