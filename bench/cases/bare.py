"""Our produce beside the bare data path: the same bytes through as little Python as can replicate them."""

import asyncio
import json
import sys

from minibroker.bench.case import MINIBROKER, Case, CaseFailed, Measurement, Round
from minibroker.bench.cases.loaded import KIB, KILOBYTE, produce_into, topic_for
from minibroker.bench.peers.peer import Peer

RECORDS = 200_000
FRAME_BYTES = 100_000
"""About what a batch of 128 KiB holds of records of 1 KB."""
BARE_BYTES = 250_000_000
BARE_TIMEOUT_S = 60.0


class ShareOfBare:
    """Both in one round, and how they compare. The bare path is measured before and after ours, and the mean of both is
    taken: what the machine did meanwhile then hits neither alone."""

    async def __call__(self, peer: Peer, round: Round) -> Measurement:
        before = await _bare_mb_s(round)
        async with topic_for(peer, "bare", round) as topic:
            ours = await produce_into(peer, topic, round.volume_of(RECORDS, 1_000), KILOBYTE, 128 * KIB)
        bare = (before + await _bare_mb_s(round)) / 2
        figures = ours.figures | {"bare_mb_s": bare, "share": ours.figures["mb_s"] / bare}
        return Measurement(figures, ours.costs)


async def _bare_mb_s(round: Round) -> float:
    arguments = [str(round.directory), str(FRAME_BYTES), str(round.volume_of(BARE_BYTES, 10 * FRAME_BYTES))]
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "minibroker.bench.load.bare_data_path", *arguments],
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), BARE_TIMEOUT_S)
    except TimeoutError:
        raise CaseFailed(f"the bare data path did not end within {BARE_TIMEOUT_S:g} s") from None
    finally:
        if process.returncode is None:
            process.terminate()
    if process.returncode:
        raise CaseFailed(f"the bare data path ended with {process.returncode}")
    return float(json.loads(output)["mb_s"])


CASES = [
    Case(
        name="share-of-bare",
        title="produce 1 KB, 128 KiB batches, as a share of the bare data path",
        figure="share",
        unit="x",
        higher_is_better=True,
        peers=(MINIBROKER,),
        run=ShareOfBare(),
    )
]
