"""What the audit keeps quiet around Spark."""

import logging

import pytest

from minibroker.audit.spark_context import quiet_interrupts


def interrupted() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        logging.exception("KeyboardInterrupt while sending command.")  # as py4j does


def test_an_interrupt_is_no_stack_trace_and_errors_still_show(caplog: pytest.LogCaptureFixture) -> None:
    with quiet_interrupts():
        interrupted()
        assert caplog.messages == []
        logging.getLogger().error("something else")
    assert caplog.messages == ["something else"]
    interrupted()
    assert len(caplog.messages) == 2
