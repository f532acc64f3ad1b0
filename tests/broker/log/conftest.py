from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.log.machine import Machine


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    machine.check_closed_files()
    machine.loop.close()
