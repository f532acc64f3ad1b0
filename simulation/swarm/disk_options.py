"""What one run's faulty disk is made of, drawn from a random stream of its own: seeds without it mean what they meant.

Owns: the names of the faults of a disk and of a whole cluster, and the draw. Refuses to do anything with it.
"""

import random

import msgspec

DISK_FAULTS_SHARE = 0.5
"""How many runs have them, if nobody asks: the others are what they were before."""

RUNNING_ROT = ("rot_header", "rot_payload", "rot_index", "rot_checkpoint", "rot_epochs", "rot_snapshot", "rot_identity")
"""Bit rot in one kind of file: at rest under a running broker, or between its end and its next start."""
FILES = ("missing_segment", "missing_index", "missing_file", "foreign_segment", "directory_as_segment")
CALLS = ("sync_forgets", "sync_forgets_full", "call_fails", "call_finds_no_room", "call_finds_no_descriptor")
WHOLE_DISKS = ("lost_disk", "foreign_disk", "lying_disk")
FIRST_FAULTS = (*RUNNING_ROT, *FILES, *CALLS, *WHOLE_DISKS)
MISPLACED = ("swapped_directories", "foreign_log_start")
"""What is sound, but of another partition of the same topic. Drawn last, so that recorded seeds draw what they drew."""
DISK_FAULTS = (*FIRST_FAULTS, *MISPLACED)

MISPLACED_SHARE = 0.2

CLUSTER_PLOTS = (
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
"""Everybody ends, and starts in any order; or a topic lives a second time, with records under promise."""

CALL_NAMES = (
    *("append", "read", "write_at", "truncate", "sync", "open", "replace_file", "rename", "remove"),
    *("list_directory", "make_directory", "sync_directory"),
)
"""Every call of the virtual disk that may fail."""
OPENING_CALLS = ("open", "list_directory", "replace_file", "sync_directory")
"""Those that need a descriptor of their own."""


class DiskOptions(msgspec.Struct, kw_only=True):
    """One run's draw."""

    faults: tuple[str, ...]
    plots: tuple[str, ...]
    plot_share: float
    pause_mean: float
    """Seconds between two steps, on average."""
    settings: dict[str, str]
    """Laid over the run's: small segments, so that there is something to lose."""


def draw_disk_options(rng: random.Random, wanted: bool | None) -> DiskOptions | None:
    """None: the run is as it was before this dimension was drawn. `wanted`: None leaves it to the seed."""
    options = draw_faulty(rng)
    is_drawn = rng.random() < DISK_FAULTS_SHARE if wanted is None else wanted
    return options if is_drawn else None


def draw_faulty(rng: random.Random) -> DiskOptions:
    """A few kinds, often, find more than all of them."""
    settings = {"log.retention.check.interval.ms": rng.choice(("300", "1000"))}
    if rng.random() < 0.7:
        settings |= {
            "log.segment.bytes": "4096",
            "log.index.interval.bytes": "256",
            "log.flush.offset.checkpoint.interval.ms": rng.choice(("500", "1000")),
        }
    if rng.random() < 0.6:
        settings["log.tail.cache.bytes"] = "0"  # what is read comes from the disk
    faults = rng.sample(FIRST_FAULTS, rng.randint(1, 4))
    plots = rng.sample(CLUSTER_PLOTS, rng.randint(1, 3))
    plot_share = rng.choice((0.0, 0.3, 0.7))
    pause_mean = rng.choice((0.2, 0.5, 1.0))
    faults += [kind for kind in MISPLACED if rng.random() < MISPLACED_SHARE]
    return DiskOptions(
        faults=tuple(sorted(faults)),
        plots=tuple(sorted(plots)),
        plot_share=plot_share,
        pause_mean=pause_mean,
        settings=settings,
    )
