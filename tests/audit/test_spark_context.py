"""The messages that the audit suppresses around Spark."""

import logging
from pathlib import Path

import msgspec
import pytest

from minibroker.audit.errors import AuditError
from minibroker.audit.reading.discovery import Inventory
from minibroker.audit.reading.segment_reader import RangeTask
from minibroker.audit.spark import same_code
from minibroker.audit.spark.same_code import code_digest
from minibroker.audit.spark.spark_context import quiet_interrupts, spark_context
from minibroker.audit.spark.spark_job import _CheckedShare, _checker, _Portion, _portions, _reader


def interrupted() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        logging.exception("KeyboardInterrupt while sending command.")  # as py4j does


def test_an_interrupt_logs_no_stack_trace_but_errors_do(caplog: pytest.LogCaptureFixture) -> None:
    with quiet_interrupts():
        interrupted()
        assert caplog.messages == []
        logging.getLogger().error("something else")
    assert caplog.messages == ["something else"]
    interrupted()
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("logger", [None, "py4j.clientserver", "py4j.java_gateway"])
def test_an_error_after_an_interrupt_logs_no_stack_trace(caplog: pytest.LogCaptureFixture, logger: str | None) -> None:
    with quiet_interrupts():
        try:
            try:
                raise KeyboardInterrupt
            finally:
                raise BrokenPipeError
        except BrokenPipeError:
            logging.getLogger(logger).exception("Exception occurred while shutting down connection")  # as py4j does
    assert caplog.messages == []


@pytest.mark.spark
def test_an_interrupt_is_recognised_when_pyspark_fails_afterwards() -> None:
    pytest.importorskip("pyspark")
    with pytest.raises(KeyboardInterrupt), spark_context("local[1]"):
        try:
            raise KeyboardInterrupt
        finally:
            raise ConnectionError("Answer from Java side is empty")


@pytest.mark.spark
@pytest.mark.parametrize("error", [AuditError("why"), KeyboardInterrupt()], ids=["failed", "interrupted"])
def test_nothing_of_pyspark_is_printed_when_an_audit_ends_early(
    capfd: pytest.CaptureFixture[str], error: BaseException
) -> None:
    pytest.importorskip("pyspark")
    with pytest.raises(type(error)), spark_context("local[1]") as context:
        assert context.parallelize([1], 1).map(str).collect() == ["1"]  # the JVM connects to pyspark's servers
        raise error
    assert capfd.readouterr() == ("", "")


def test_an_executor_that_does_not_see_the_logs_has_no_rows_to_give(tmp_path: Path) -> None:
    """Retention may remove a segment while a query runs, but not a broker's directory: once that gave no rows."""
    pytest.importorskip("pyspark")
    from minibroker.audit.spark.source import _rows

    log_directory = tmp_path / "broker-1"
    task = RangeTask(directory=str(log_directory / "lines-0"), segment=0, size=100, start=0, end=100)
    with pytest.raises(AuditError, match="broker-1 is not here: every executor must see the same paths"):
        list(_rows(task, records=False))
    log_directory.mkdir()
    assert list(_rows(task, records=False)) == []


def test_a_worker_with_another_version_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rules are others: an older one may find nothing."""
    read = _reader(False, False, code_digest())
    check = _checker(Inventory(log_directories=(), replicas=()), False, False, code_digest())
    portion = msgspec.msgpack.encode(_Portion((), None))
    assert list(read(portion)) == []
    monkeypatch.setattr(same_code, "code_digest", lambda: "another")
    (failure,) = read(portion)
    assert failure[0] is None
    assert failure[1].decode().endswith("install the same there, or give --ship-package")
    (share,) = (msgspec.msgpack.decode(content, type=_CheckedShare) for content in check(()))
    assert share.failure == failure[1].decode()


def test_executors_get_the_whole_path_of_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their working directory is another one."""
    (tmp_path / "acked.tsv").write_text("lines\t0\t0\t-\n")
    monkeypatch.chdir(tmp_path)
    (portion,) = _portions(Inventory(log_directories=(), replicas=()), "acked.tsv", None, None, 1)
    acked = msgspec.msgpack.decode(portion, type=_Portion).acked
    assert acked is not None
    assert acked.path == str(tmp_path / "acked.tsv")
