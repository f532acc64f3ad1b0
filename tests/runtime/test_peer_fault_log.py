"""How many log lines bad connections cause."""

import asyncio
import logging

import pytest

from minibroker.protocol.wire.messages import ApiKey
from minibroker.runtime.server.peer_fault_log import INTERVAL_SECONDS, KINDS_MAX, LINES_MAX, PeerFaultLog
from tests.runtime.wire_scene import Scene, framed, packed, simulated, until

GARBAGE = framed(b"garbage")
MALFORMED = packed(ApiKey.LIST_OFFSETS, [1, 2], 9)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "minibroker.server"]


async def send_from(scene: Scene, machine: str, data: bytes, connections: int) -> None:
    for _ in range(connections):
        peer = await scene.peer(machine)
        peer.send(data)
        await until(lambda peer=peer: peer.answers)  # type: ignore[misc]


@simulated
async def test_of_many_bad_connections_some_are_shown_and_the_rest_is_counted(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.serve()
    await send_from(scene, "one", GARBAGE, LINES_MAX + 20)
    await send_from(scene, "two", MALFORMED, 5)
    assert len(lines(caplog)) == LINES_MAX
    assert all("it broke the protocol" in line for line in lines(caplog))
    await asyncio.sleep(INTERVAL_SECONDS)
    [line] = lines(caplog)[LINES_MAX:]
    assert line == (
        "25 more faults within 10 s: it broke the protocol (20), LIST_OFFSETS refused (5);"
        " from 10.0.0.2 (20), 10.0.0.3 (5)"
    )


@simulated
async def test_after_a_quiet_time_the_first_fault_is_shown_at_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.serve()
    await send_from(scene, "one", GARBAGE, LINES_MAX + 1)
    await asyncio.sleep(2 * INTERVAL_SECONDS)
    before = len(lines(caplog))
    await send_from(scene, "two", GARBAGE, 1)
    assert len(lines(caplog)) == before + 1


@simulated
async def test_faults_that_were_only_counted_are_logged_at_the_end(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.serve()
    await send_from(scene, "one", GARBAGE, LINES_MAX + 1)
    await scene.server.stop()
    assert lines(caplog)[-1].startswith("1 more faults")


@simulated
async def test_any_number_of_kinds_and_addresses_makes_one_short_line(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    faults = PeerFaultLog()
    for number in range(10_000):
        faults.report(logging.WARNING, f"host-{number}:1", "x" * (number % 100 + 1), "%s", "a fault")
    faults.stop()
    line = lines(caplog)[-1]
    assert line.startswith(f"{10_000 - LINES_MAX} more faults")
    assert line.count("(") <= KINDS_MAX + 1 + 3
    assert line.endswith("998 more")


@simulated
async def test_numbers_do_not_make_kinds(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    faults = PeerFaultLog()
    for number in range(LINES_MAX + 50):
        faults.report(logging.ERROR, "host:1", f"its request of {number} bytes is one too many", "%s", "a fault")
    faults.stop()
    assert lines(caplog)[-1] == (
        "50 more faults within 10 s: its request of N bytes is one too many (50); from host (50)"
    )
