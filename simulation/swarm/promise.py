"""The promise as data: fault and circumstance -> what becomes of acknowledged records, and why.

Owns: the table that the schedule obeys, the checkers verify and docs/OPERATIONS.md shows. Leaves to others: faults and
clusters. A row with MAY_LOSE is never drawn within the promise (`--beyond` draws some).
"""

from enum import StrEnum

from msgspec import Struct

from minibroker.simulation.swarm.faults.disk_options import CRASHES, MISPLACED, NOTES, OLDER, RUNNING_ROT, SHORTENED
from minibroker.simulation.swarm.options import OLDER_ZOOKEEPER


class Guarantee(StrEnum):
    """What becomes of acknowledged records."""

    SURVIVES = "survives"
    """Nothing acknowledged is lost, and the cluster heals by itself."""
    STOPS_SAFELY = "stops safely"
    """Nothing is lost and nothing wrong is served; something stops, reports it, and needs an operator."""
    MAY_LOSE = "may lose"


class Circumstance(StrEnum):
    """The condition of a row."""

    ANY = "any"
    ANOTHER_COPY = "another in-sync replica keeps a good copy"
    ONLY_COPY = "the only in-sync copy"
    FLUSHED = "`log.flush.interval.messages=1`"
    UNFLUSHED = "syncs left to the operating system (default)"


class PromiseRow(Struct, frozen=True):
    """One row of the promise."""

    fault: str
    circumstance: Circumstance
    guarantee: Guarantee
    why: str
    kinds: tuple[str, ...] = ()
    """Names of the schedule's faults and sequences that this row covers."""


_ROT = RUNNING_ROT
_FILES = (
    *("missing_segment", "missing_index", "missing_file", "foreign_segment", "directory_as_segment"),
    *(*MISPLACED, *NOTES),
)
_SYNCS = ("sync_forgets", "sync_forgets_full")
_CALLS = ("call_fails", "call_finds_no_room", "call_finds_no_descriptor")
_ENDS = ("all_stopped", "all_killed", "all_end_anyhow")

PROMISE = (
    PromiseRow(
        "one broker is killed, paused, cut off or loses power",
        Circumstance.ANOTHER_COPY,
        Guarantee.SURVIVES,
        "an in-sync replica leads; the broker that returns truncates what was never committed and copies the rest. It"
        " may crash between any two calls to its disk: the next start recognizes the files that each call leaves",
        CRASHES,
    ),
    PromiseRow(
        "one broker is killed, paused or cut off",
        Circumstance.ONLY_COPY,
        Guarantee.STOPS_SAFELY,
        "no other broker has all acknowledged records: the partition waits for this broker",
    ),
    PromiseRow(
        "one of the last two in-sync brokers stops, and the other one loses power before it has synced its log",
        Circumstance.UNFLUSHED,
        Guarantee.MAY_LOSE,
        "a broker that stops leaves the ISR, and its complete copy does not count any more. The other one, as the only"
        " in-sync copy, syncs its log as soon as it leads",
    ),
    PromiseRow(
        "bit rot in any file of one disk, at rest or between stop and start",
        Circumstance.ANOTHER_COPY,
        Guarantee.SURVIVES,
        "checksums and the epoch history show it; that replica alone goes offline and copies its log again",
        _ROT,
    ),
    PromiseRow(
        "bit rot in acknowledged records",
        Circumstance.ONLY_COPY,
        Guarantee.STOPS_SAFELY,
        "the damaged range is reported and not served; nothing is invented, nothing else is deleted",
    ),
    PromiseRow(
        "files of one disk are gone or foreign",
        Circumstance.ANOTHER_COPY,
        Guarantee.SURVIVES,
        "files that contradict each other, or name another partition, are damage, never the rest of a deletion; the"
        " replica copies its log again",
        _FILES,
    ),
    PromiseRow(
        "a log of one disk is cut at any batch, emptied, zeroed or removed, or files of one disk (or all of it) are put"
        " back as they were earlier",
        Circumstance.ANOTHER_COPY,
        Guarantee.SURVIVES,
        "a broker that was down counts for nothing until it has caught up; before an election, two undisturbed logs or"
        " all logs must be known",
        (*SHORTENED, *OLDER),
    ),
    PromiseRow(
        "files of one disk are gone, cut or older than they were",
        Circumstance.ONLY_COPY,
        Guarantee.STOPS_SAFELY,
        "if the disk itself shows it: files contradict each other, or a log ends below its last checkpointed high"
        " watermark (after a power cut: and recovery point) or below the end that a clean stop recorded. No leader"
        " until an operator elects one on purpose",
        ("only_copy_is_damaged",),
    ),
    PromiseRow(
        "files of one disk are gone, cut or older than they were, and nothing on it shows that",
        Circumstance.ONLY_COPY,
        Guarantee.MAY_LOSE,
        "a log that ends early and agrees with all its files is a sound, shorter log",
    ),
    PromiseRow(
        "the clock of a leader runs ahead, or ran behind and is set right",
        Circumstance.ANY,
        Guarantee.MAY_LOSE,
        "`retention.ms` goes by the leader's clock, now and at the last write to a segment: records that are too old by"
        " it are deleted on all replicas",
    ),
    PromiseRow(
        "the modification times of one broker's segment files are set back (a restore, a copy, a tool)",
        Circumstance.ANY,
        Guarantee.MAY_LOSE,
        "they say when a segment was last written: once that broker leads, `retention.ms` deletes what seems too old,"
        " on all replicas. `touch` the `.log` files before the broker starts",
    ),
    PromiseRow(
        "ZooKeeper comes back with an older copy of its data while brokers run",
        Circumstance.ANY,
        Guarantee.STOPS_SAFELY,
        "each broker compares it with the newest transaction that it has seen, and ends before it registers",
    ),
    PromiseRow(
        "ZooKeeper's data is replaced by an older copy while all brokers are stopped",
        Circumstance.ANOTHER_COPY,
        Guarantee.STOPS_SAFELY,
        "each broker counts the changes that it learns of, at most 1 s late, in ZooKeeper and on its disk, and does not"
        " start if ZooKeeper knows fewer of them",
        OLDER_ZOOKEEPER,
    ),
    PromiseRow(
        "ZooKeeper's data is replaced by an older copy while all brokers are stopped",
        Circumstance.ONLY_COPY,
        Guarantee.MAY_LOSE,
        "the broker with that copy does not start, but those that were down when they left the ISR do not know of it,"
        " and two of them may lead without the records since",
    ),
    PromiseRow(
        "a segment file of another partition of the same topic is put in under a name that it fits",
        Circumstance.ANY,
        Guarantee.MAY_LOSE,
        "it is not noticed, and served: nothing in a batch names its partition (nor in Kafka); only the audit sees it,"
        " when it compares the replicas",
    ),
    PromiseRow(
        "an entry at the top of one log directory cannot be used (a directory in the place of a checkpoint)",
        Circumstance.ANY,
        Guarantee.STOPS_SAFELY,
        "the broker reports it and does not start; leadership moves. Move the entry away and start the broker",
    ),
    PromiseRow(
        "a sync fails, and the kernel has forgotten the pages",
        Circumstance.ANOTHER_COPY,
        Guarantee.SURVIVES,
        "after any failed sync, whatever the error, the directory is offline until the broker is started again",
        _SYNCS,
    ),
    PromiseRow(
        "a sync fails, and the kernel has forgotten the pages",
        Circumstance.ONLY_COPY,
        Guarantee.MAY_LOSE,
        "no other broker has the records. The directory is offline until the broker is started again, and that start"
        " reads what the disk kept",
    ),
    PromiseRow(
        "a call to the disk other than a sync fails (EIO, ENOSPC, EMFILE)",
        Circumstance.ANY,
        Guarantee.SURVIVES,
        "EIO takes the directory offline; a full disk refuses records until there is room; a lack of descriptors"
        " passes",
        _CALLS,
    ),
    PromiseRow(
        "one disk is lost, and a blank one is put in",
        Circumstance.ANOTHER_COPY,
        Guarantee.SURVIVES,
        "a member on another directory never leads; it copies everything before it is in sync",
        ("lost_disk",),
    ),
    PromiseRow(
        "one disk is lost, and a blank one is put in",
        Circumstance.ONLY_COPY,
        Guarantee.STOPS_SAFELY,
        "the partition has no leader until an operator elects one on purpose (`minibroker partition elect`)",
    ),
    PromiseRow(
        "another broker's disk is put in",
        Circumstance.ANOTHER_COPY,
        Guarantee.STOPS_SAFELY,
        "the broker refuses to start on it; leadership moves. Put in its own disk or a blank one",
        ("foreign_disk",),
    ),
    PromiseRow(
        "one disk reports syncs that it has not done; then the power fails",
        Circumstance.ANOTHER_COPY,
        Guarantee.SURVIVES,
        "a broker that starts again counts for nothing until it has caught up with its leader",
        ("lying_disk",),
    ),
    PromiseRow(
        "one disk reports syncs that it has not done; then the power fails",
        Circumstance.ONLY_COPY,
        Guarantee.MAY_LOSE,
        "no other broker has the records, and the disk has lost them",
    ),
    PromiseRow(
        "all brokers are stopped or killed, and started in any order",
        Circumstance.ANY,
        Guarantee.SURVIVES,
        "what was written is still there; no replica is elected that may lack what another member has",
        _ENDS,
    ),
    PromiseRow(
        "all brokers are killed, one of them by a power cut, and its starts crash",
        Circumstance.ANOTHER_COPY,
        Guarantee.SURVIVES,
        "the proof that a log is whole is removed before anything else is written",
        ("all_end_and_one_dies_in_its_start",),
    ),
    PromiseRow(
        "all brokers lose power at once",
        Circumstance.FLUSHED,
        Guarantee.SURVIVES,
        "a record is synced on every in-sync replica before it is acknowledged",
        ("all_without_power",),
    ),
    PromiseRow(
        "all brokers lose power at once",
        Circumstance.UNFLUSHED,
        Guarantee.MAY_LOSE,
        "an acknowledgement means copies in memory on several machines; machines that lose power together lose them",
        ("all_without_power",),
    ),
    PromiseRow(
        "all brokers are stopped or killed, and one disk is replaced or damaged meanwhile",
        Circumstance.ANOTHER_COPY,
        Guarantee.SURVIVES,
        "the election waits for all members of the last ISR and takes the one that has the most",
        (
            "all_stopped_and_a_disk_replaced",
            "all_killed_and_a_disk_replaced",
            "all_end_and_a_disk_rots",
            "all_end_and_a_segment_is_gone",
            "all_end_and_a_log_is_shorter",
            "all_end_and_an_older_copy_is_back",
        ),
    ),
    PromiseRow(
        "all brokers are stopped, and the disk of the last in-sync one is replaced",
        Circumstance.ONLY_COPY,
        Guarantee.STOPS_SAFELY,
        "no leader until an operator elects one on purpose; the command says what may be lost",
    ),
    PromiseRow(
        "a topic is deleted and made again under its name",
        Circumstance.ANY,
        Guarantee.SURVIVES,
        "files belong to a topic id, not to a name",
        ("topic_reborn",),
    ),
    PromiseRow(
        "several faults of one disk, or of one disk after another is repaired",
        Circumstance.ANOTHER_COPY,
        Guarantee.SURVIVES,
        "a disk is repaired when its broker is back in every ISR with none of the damage left",
    ),
    PromiseRow(
        "a log of one disk is cut, the epoch of the batch that is its last one then rots, and all brokers end, within"
        " the five seconds before a checkpoint of high watermarks",
        Circumstance.ANOTHER_COPY,
        Guarantee.MAY_LOSE,
        "no CRC covers an epoch: such a log seems later than the whole ones, and no high watermark contradicts it yet",
    ),
    PromiseRow(
        "a small file of one disk is forged: its content was never true, but its checksum, topic and partition are"
        " right (`log-start`, an epoch history, the recovery points)",
        Circumstance.ANY,
        Guarantee.MAY_LOSE,
        "not promised: nothing else says where a log begins. A start behind the log's end removes no segment; a start"
        " within the log is trusted, and a recovery point that is too high makes sound logs count as damaged",
    ),
    PromiseRow(
        "two disks are faulty at once",
        Circumstance.ANY,
        Guarantee.MAY_LOSE,
        "the two bad copies may be the only ones of a record",
    ),
)

HEAD = "| fault | circumstance | acknowledged records | why |\n|---|---|---|---|\n"


def allows(kind: str, circumstance: Circumstance) -> bool:
    """Whether the schedule may do this within the promise. A kind without a row is a mistake in the table."""
    rows = [row for row in PROMISE if kind in row.kinds]
    assert rows, f"the promise says nothing of {kind}"
    fitting = [row for row in rows if row.circumstance in (circumstance, Circumstance.ANY)]
    return bool(fitting) and all(row.guarantee is not Guarantee.MAY_LOSE for row in fitting)


def render_promise() -> str:
    """The table for docs/OPERATIONS.md."""
    lines = [f"| {row.fault} | {row.circumstance} | **{row.guarantee}** | {row.why} |\n" for row in PROMISE]
    return HEAD + "".join(lines)
