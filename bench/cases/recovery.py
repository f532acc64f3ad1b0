"""How fast a broker reads its logs again after SIGKILL, compared with a plain walk with CRC over the same files.

Owns: a follower with a long log, its SIGKILL, and the time until its process has loaded the log. The other costs of a
start (Python, imports) are measured in the same way with a nearly empty log, and subtracted.
"""

import time

import msgspec

from minibroker.bench.broker_log import parse_log
from minibroker.bench.case import MINIBROKER, Case, CaseFailed, Measurement, Round
from minibroker.bench.cases.loaded import KIB
from minibroker.bench.load_process import run_load
from minibroker.bench.peers.minibroker_peer import MinibrokerPeer
from minibroker.bench.peers.peer import BROKERS, Peer
from minibroker.bench.walking import segment_files, walk

RECORDS = 1_000_000
"""Of 1 KB: 1 GB per replica."""
RECORD_BYTES = 1_000
BATCH_BYTES = 16 * KIB
TOPIC = "recovered"


class Recovery(msgspec.Struct, frozen=True):
    """One start after a SIGKILL."""

    seconds: float
    """From the start of the process to its last loaded log."""
    bytes: int
    """Read and checked."""


async def run(peer: Peer, round: Round) -> Measurement:
    assert isinstance(peer, MinibrokerPeer)
    await peer.start()
    await peer.make_topic(TOPIC)
    load = {"topic": TOPIC, "record_bytes": RECORD_BYTES, "batch_bytes": BATCH_BYTES}
    await run_load(peer, "produce", records=1, **load)
    victim = await peer.leader_of(TOPIC) % BROKERS + 1  # any but the leader: no leadership has to move
    empty = await recover(peer, victim)
    await peer.wait_in_sync()
    records = round.volume_of(RECORDS, at_least=50_000)
    round.progress(f"writing {records * RECORD_BYTES / 1e9:.1f} GB")
    await run_load(peer, "produce", records=records, **load)
    full = await recover(peer, victim)
    await peer.wait_in_sync()
    round.progress("walking")
    walked = await walk(segment_files([peer.log_directory(victim)]), 1)
    mb_s = rate(empty, full)
    return Measurement(
        {
            "mb_s": round_3(mb_s),
            "walk_mb_s": round_3(walked.mb_s),
            "of_plain_walk": round_3(mb_s / walked.mb_s),
            "seconds": round_3(full.seconds),
            "empty_seconds": round_3(empty.seconds),
            "gb": round_3(full.bytes / 1e9),
        }
    )


def round_3(value: float) -> float:
    return round(value, 3)


def rate(empty: Recovery, full: Recovery) -> float:
    """MB/s of the scan alone. Raises CaseFailed if the two starts do not differ."""
    seconds, scanned = full.seconds - empty.seconds, full.bytes - empty.bytes
    if seconds <= 0 or scanned <= 0:
        raise CaseFailed(f"{scanned} bytes more were scanned in {seconds:.3f} s more: that gives no rate")
    return scanned / seconds / 1e6


async def recover(peer: MinibrokerPeer, broker_id: int) -> Recovery:
    """Kill the broker, start it, and read in its log when it had loaded everything."""
    await peer.cluster.kill(broker_id)
    began = time.time()
    await peer.start_broker(broker_id)
    found = recovery(await peer.read_broker_log(broker_id), began)
    if found is None:
        raise CaseFailed(f"broker {broker_id} has logged no scan")
    return found


def recovery(log: str, began_s: float) -> Recovery | None:
    """From the broker's log since its start; None if no log had to be scanned."""
    events = [event for event in parse_log(0, log) if event.at_s >= began_s - 0.001]
    scans = [event for event in events if event.name == "log_scanned"]
    if not scans:
        return None
    return Recovery(scans[-1].at_s - began_s, sum(event.fields["scanned_bytes"] for event in scans))


CASES = (
    Case(
        name="recovery",
        title="logs read again after SIGKILL, of a plain walk with CRC",
        figure="of_plain_walk",
        unit="x",
        higher_is_better=True,
        about_s=45,
        run=run,
        peers=(MINIBROKER,),
        own_cluster=True,
        rounds=3,
    ),
)
