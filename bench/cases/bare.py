"""Producing to minibroker, compared with the bare data path: the same bytes through as little Python as can replicate
them.

Owns: that both have the same work: as many bytes in frames of one size, into new files, on a machine in the state in
which every round begins (the files of the previous measurement are removed, and that is written to the disk). Which one
goes first changes with every round. The bare path gets whole frames, so minibroker is measured with a hundred records
per call (send_many) and with one.
"""

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from minibroker.bench.case import MINIBROKER, Case, Measurement, Round
from minibroker.bench.cases.loaded import KIB, KILOBYTE, produce_into, topic_for
from minibroker.bench.child import output_of
from minibroker.bench.peers.peer import Peer

TOTAL_BYTES = 800_000_000
"""As much as the measurement moved that the goal is based on. Times three replicas it stays below the amount at which
Linux starts to write back."""
FRAME_BYTES = 100_000
"""About the records of 1 KB that a batch of 128 KiB holds."""
BARE_TIMEOUT_S = 120.0
RECORDS_A_CALL = 100
"""Records that one call of send_many gets: as many bytes as a frame has."""


class ShareOfBare:
    """All measurements in one round, and their ratios."""

    async def __call__(self, peer: Peer, round: Round) -> Measurement:
        records = round.volume_of(TOTAL_BYTES // KILOBYTE, 1_000)

        async def bare() -> Measurement:
            return Measurement({"mb_s": await bare_mb_s(round, records * KILOBYTE)})

        ways: list[tuple[str, Callable[[], Awaitable[Measurement]]]] = [
            ("bare", bare),
            ("many", lambda: _ours(peer, round, records, many=RECORDS_A_CALL)),
            ("one", lambda: _ours(peer, round, records)),
        ]
        first = round.number % len(ways)
        found: dict[str, Measurement] = {}
        for way, measure in ways[first:] + ways[:first]:
            if found:  # the round itself has settled before the first one
                await round.settle()
            found[way] = await measure()
        return compared(found)


def compared(found: dict[str, Measurement]) -> Measurement:
    """`found` has the results of "bare", "one" (a call) and "many"; the costs are those of "many"."""
    bare, one, many = (found[way].figures["mb_s"] for way in ("bare", "one", "many"))
    more = {"bare_mb_s": bare, "one_a_call_mb_s": one, "share": many / bare, "one_a_call_share": one / bare}
    return Measurement(found["many"].figures | more, found["many"].costs)


async def _ours(peer: Peer, round: Round, records: int, **more: int) -> Measurement:
    async with topic_for(peer, "beside-bare-many" if more else "beside-bare", round) as topic:
        return await produce_into(peer, topic, records, KILOBYTE, 128 * KIB, **more)


async def bare_mb_s(round: Round, total_bytes: int) -> float:
    """Raises CaseFailed. Leaves no file behind."""
    folder = round.directory / "bare"
    folder.mkdir()
    try:
        return await _bare_mb_s(folder, total_bytes)
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


async def _bare_mb_s(folder: Path, total_bytes: int) -> float:
    arguments = [str(folder), str(FRAME_BYTES), str(total_bytes)]
    command = [sys.executable, "-m", "minibroker.bench.load.bare_data_path", *arguments]
    output = await output_of("the bare data path", command, BARE_TIMEOUT_S)
    return float(json.loads(output)["mb_s"])


CASES = [
    Case(
        name="share-of-bare",
        title="produce 1 KB, 128 KiB batches, 100 per call, as a share of the bare data path",
        figure="share",
        unit="x",
        higher_is_better=True,
        about_s=24,
        peers=(MINIBROKER,),
        run=ShareOfBare(),
    )
]
