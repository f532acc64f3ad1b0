"""The faults of one run's disk, drawn from a random stream of its own, so that seeds without them keep their meaning.

Owns: the names of the faults of a disk and of a whole cluster, and the draw. Leaves to others: to do them.
"""

import random

import msgspec

from minibroker.simulation.swarm.choices import is_drawn

DISK_FAULTS_SHARE = 0.5
"""How many runs have disk faults if the caller does not choose; the others stay as they were."""

FIRST_ROT = ("rot_header", "rot_payload", "rot_index", "rot_checkpoint", "rot_epochs", "rot_snapshot", "rot_identity")
"""Bit rot in one kind of file, under a running broker or while it is down."""
FILES = ("missing_segment", "missing_index", "missing_file", "foreign_segment", "directory_as_segment")
CALLS = ("sync_forgets", "sync_forgets_full", "call_fails", "call_finds_no_room", "call_finds_no_descriptor")
WHOLE_DISKS = ("lost_disk", "foreign_disk", "lying_disk")
RARE_DISK_FAULTS = ("lost_disk", "lying_disk", "missing_segment")
"""Drawn as often as others, but seldom possible: for the first two every partition needs an in-sync replica on another
disk, for the last a log needs several segments."""
FIRST_FAULTS = (*FIRST_ROT, *FILES, *CALLS, *WHOLE_DISKS)
MISPLACED = ("swapped_directories", "foreign_log_start")
"""Sound files of another partition of the same topic. Drawn last, so that recorded seeds keep their meaning."""
VANISHING = ("zeroed_segment", "newest_segments_gone", "all_segments_gone", "directory_gone")
"""May also come under a running broker."""
SHORTENED = ("cut_at_batch", "emptied_segment", *VANISHING)
"""A log that ends early or is missing."""
NOTES = ("missing_note", "emptied_note")
"""Small files that say what a log is, or which part of it is valid."""
OLDER = ("older_file", "older_directory", "older_disk")
"""An older copy is put back."""
FILE_CHANGES = (*SHORTENED, *NOTES, *OLDER)
CRASHES = ("dies_in_a_start", "dies_in_a_close", "dies_at_work")
"""A kill or a power cut between two calls to the disk."""
NOTES_ROT = "rot_notes"
RUNNING_ROT = (*FIRST_ROT, NOTES_ROT)

MISPLACED_SHARE = 0.2
LATER_FAULTS = (NOTES_ROT, *FILE_CHANGES, *CRASHES)
"""Frequent in most runs; the other runs draw as they did before these existed."""
LATER_RUNS_SHARE = 0.7
DISK_FAULTS = (*FIRST_FAULTS, *MISPLACED, *LATER_FAULTS)

FIRST_SEQUENCES = (
    "all_stopped",
    "all_killed",
    "all_without_power",
    "all_end_anyhow",
    "all_stopped_and_a_disk_replaced",
    "all_killed_and_a_disk_replaced",
    "all_end_and_a_disk_rots",
    "all_end_and_a_segment_is_gone",
    "topic_reborn",
)
"""All brokers end and start in any order; or a topic is made again, with records under promise."""
LATER_SEQUENCES = (
    "all_end_and_a_log_is_shorter",
    "all_end_and_an_older_copy_is_back",
    "all_end_and_one_dies_in_its_start",
    "only_copy_is_damaged",
)
CLUSTER_SEQUENCES = (*FIRST_SEQUENCES, *LATER_SEQUENCES)

SCRUB_ROUND_MS = "1000"
"""Time runs faster than in a real cluster: a scrubber's round begins soon after the one before."""

CALL_NAMES = (
    *("append", "read", "write_at", "truncate", "sync", "open", "replace_file", "rename", "remove"),
    *("list_directory", "make_directory", "sync_directory"),
)
"""Every call of the virtual disk that may fail."""
OPENING_CALLS = ("open", "list_directory", "replace_file", "sync_directory")
"""Calls that need a file descriptor."""


class DiskOptions(msgspec.Struct, kw_only=True):
    """One run's draw."""

    faults: tuple[str, ...]
    sequences: tuple[str, ...]
    sequence_share: float
    pause_mean: float
    """Seconds between two steps, on average."""
    settings: dict[str, str]
    """They override the run's: small segments, so that there is something to lose."""


def draw_disk_options(rng: random.Random, wanted: bool | None) -> DiskOptions | None:
    """None: a run without disk faults. `wanted`: None leaves the choice to the seed."""
    options = draw_faulty(rng)
    return options if is_drawn(rng, DISK_FAULTS_SHARE, wanted) else None


def draw_faulty(rng: random.Random) -> DiskOptions:
    """A few kinds, often, find more than all of them."""
    settings = {"log.retention.check.interval.ms": rng.choice(("300", "1000")), "log.scrub.interval.ms": SCRUB_ROUND_MS}
    if rng.random() < 0.7:
        settings |= {
            "log.segment.bytes": "4096",
            "log.index.interval.bytes": "256",
            "log.flush.offset.checkpoint.interval.ms": rng.choice(("500", "1000")),
        }
    if rng.random() < 0.6:
        settings["log.tail.cache.bytes"] = "0"  # every read comes from the disk
    faults = rng.sample(FIRST_FAULTS, rng.randint(1, 4))
    sequences = rng.sample(FIRST_SEQUENCES, rng.randint(1, 3))
    sequence_share = rng.choice((0.0, 0.3, 0.7))
    pause_mean = rng.choice((0.2, 0.5, 1.0))
    faults += [kind for kind in MISPLACED if rng.random() < MISPLACED_SHARE]
    if rng.random() < LATER_RUNS_SHARE:
        faults = rng.sample(faults, min(2, len(faults))) + rng.sample(LATER_FAULTS, rng.randint(4, 6))
        sequences += rng.sample(LATER_SEQUENCES, rng.randint(1, 2))
        sequence_share, pause_mean = rng.choice((0.3, 0.6)), 0.2
    return DiskOptions(
        faults=tuple(sorted(faults)),
        sequences=tuple(sorted(sequences)),
        sequence_share=sequence_share,
        pause_mean=pause_mean,
        settings=settings,
    )
