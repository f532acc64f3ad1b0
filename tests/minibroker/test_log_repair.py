"""`minibroker log repair`: damage is named, repaired only on request, and nothing is deleted."""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.__main__ import minibroker
from minibroker.offline import log_examination, segment_files
from minibroker.offline.log_evidence import read_evidence
from minibroker.offline.log_examination import ExaminedLog, examine_directory
from minibroker.offline.log_repair import cut
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.checkpoints import LogStart, LogStartReason
from minibroker.protocol.files.meta_properties import MetaProperties, format_meta_properties
from minibroker.protocol.files.partition_metadata import PartitionMetadata, format_partition_metadata
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import build_batch
from minibroker.runtime.adapters.disk import RealDisk

PARTITION = TopicPartition("t", 0)
BOOT_ID = RealDisk().boot_id()
BATCHES = 4
"""Batches in each of two segments; each holds two records."""
CUT = ("--apply", "--cut", "t-0", "--accept-loss")


def batch(base_offset: int, epoch: int = 0) -> bytes:
    return bytes(build_batch([(None, b"value", 1000, ())] * 2, base_offset=base_offset, leader_epoch=epoch))


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A log.dir after a clean stop; 16 records in two segments."""
    partition = tmp_path / str(PARTITION)
    partition.mkdir()
    meta = MetaProperties(broker_id=1, cluster_id="c", directory_id="d", boot_id="another boot")
    (tmp_path / checkpoints.META_PROPERTIES).write_bytes(format_meta_properties(meta))
    (tmp_path / checkpoints.CLEAN_SHUTDOWN).write_bytes(checkpoints.format_clean_shutdown(1))
    points = checkpoints.format_offset_checkpoint({PARTITION: 16})
    (tmp_path / checkpoints.RECOVERY_POINT_CHECKPOINT).write_bytes(points)
    for base in (0, 8):
        content = b"".join(batch(base + 2 * number) for number in range(BATCHES))
        (partition / checkpoints.segment_file_name(base)).write_bytes(content)
    (partition / checkpoints.EPOCH_CHECKPOINT).write_bytes(checkpoints.format_epoch_checkpoint([(0, 0)]))
    return tmp_path


def segment(log_dir: Path, base: int = 0) -> Path:
    return log_dir / str(PARTITION) / checkpoints.segment_file_name(base)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def examine(log_dir: Path) -> ExaminedLog:
    (found,) = examine_directory(log_dir, read_evidence(log_dir, BOOT_ID))
    return found


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(minibroker, ["log", "repair", *arguments])
    return result.exit_code, result.stdout


def snapshot(log_dir: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in log_dir.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_sound_directory_is_fine(log_dir: Path) -> None:
    assert (examine(log_dir).found, examine(log_dir).end_offset) == ((), 16)
    assert run(str(log_dir), "--apply") == (0, f"fine: 1 partition, {len(batch(0)) * 8} bytes\n")


@pytest.mark.parametrize("byte", [7, 15, -1])
def test_a_flipped_bit_is_named_and_by_default_nothing_is_changed(log_dir: Path, byte: int) -> None:
    size = len(batch(0))
    flip(segment(log_dir), size + byte % size)
    before = snapshot(log_dir)
    code, output = run(str(log_dir), "--json")
    found = json.loads(output)
    assert code == 10
    assert (found["found"][0]["kind"], found["found"][0]["offset"], found["end_offset"]) == ("damaged", 2, 2)
    assert not found["applied"]
    assert snapshot(log_dir) == before


def test_a_missing_segment_is_damage(log_dir: Path) -> None:
    (segment(log_dir)).rename(segment(log_dir).with_name(checkpoints.segment_file_name(4)))
    damage = examine(log_dir).damage
    assert damage is not None


def test_a_torn_tail_that_never_counted_as_stored_is_no_damage(log_dir: Path) -> None:
    (log_dir / checkpoints.CLEAN_SHUTDOWN).unlink()
    with segment(log_dir, 8).open("ab") as file:
        file.write(batch(16)[:-3])
    assert [each.kind for each in examine(log_dir).found] == ["torn tail"]
    flip(segment(log_dir, 8), 3)
    assert examine(log_dir).damage is not None


def test_a_damaged_log_gets_a_note(log_dir: Path) -> None:
    flip(segment(log_dir), 70)
    assert run(str(log_dir), "--apply")[0] == 10
    assert "log repair" in (log_dir / str(PARTITION) / checkpoints.DAMAGE_NOTE).read_text()


def test_a_wrong_index_is_removed(log_dir: Path) -> None:
    index = segment(log_dir).with_suffix(checkpoints.INDEX_SUFFIX)
    index.write_bytes(checkpoints.encode_index_entry(3, 11))
    assert run(str(log_dir), "--apply")[0] == 0
    assert not index.exists()


def test_a_cut_keeps_what_is_before_the_damage_and_deletes_nothing(log_dir: Path) -> None:
    size = len(batch(0))
    flip(segment(log_dir), 2 * size + 70)
    whole = segment(log_dir).read_bytes()
    (log_dir / str(PARTITION) / checkpoints.DAMAGE_NOTE).write_text("found by a broker")
    code, output = run(str(log_dir), *CUT)
    assert code == 10
    assert "the cluster loses records from offset 4 on" in output
    assert segment(log_dir).read_bytes() == whole[: 2 * size]
    rest = log_dir / "t-0.0-cut"
    assert (rest / segment(log_dir).name).read_bytes() == whole
    assert (rest / checkpoints.segment_file_name(8)).exists()
    points = (log_dir / checkpoints.RECOVERY_POINT_CHECKPOINT).read_bytes()
    assert checkpoints.parse_offset_checkpoint(points) == {PARTITION: 4}
    assert not (log_dir / checkpoints.CLEAN_SHUTDOWN).exists()
    assert (examine(log_dir).found, examine(log_dir).end_offset) == ((), 4)


def test_a_second_cut_uses_another_directory(log_dir: Path) -> None:
    for number in range(2):
        flip(segment(log_dir), (3 - number) * len(batch(0)) - 1)
        assert cut(log_dir, examine(log_dir)).endswith(f".{number}-cut")


def test_a_sound_log_is_not_cut(log_dir: Path) -> None:
    assert run(str(log_dir), "--apply", "--cut", "t-0")[0] == 1


def name_owner(log_dir: Path, metadata: int | None = None, start: int | None = None) -> None:
    directory = log_dir / str(PARTITION)
    if metadata is not None:
        content = format_partition_metadata(PartitionMetadata(topic_id="id", partition=metadata))
        (directory / checkpoints.PARTITION_METADATA).write_bytes(content)
    if start is not None:
        recorded = LogStart(topic_id="id", partition=start, offset=0, reason=LogStartReason.CREATED)
        (directory / checkpoints.LOG_START).write_bytes(checkpoints.format_log_start(recorded))


def test_the_log_of_another_partition_is_named_and_not_changed(log_dir: Path) -> None:
    name_owner(log_dir, 1, 1)
    before = snapshot(log_dir)
    code, output = run(str(log_dir), "--apply")
    assert code == 10
    assert "partition.metadata is of partition 1 of topic id id, in the directory of partition 0" in output
    assert f"rename it to {log_dir}/t-1 " in output
    assert snapshot(log_dir) == before
    assert run(str(log_dir), "--apply", "--cut", "t-0")[0] == 1
    assert snapshot(log_dir) == before


def test_a_cut_moves_the_log_start_of_another_partition_aside_without_loss(log_dir: Path) -> None:
    name_owner(log_dir, 0, 1)
    assert examine(log_dir).damage is not None
    assert run(str(log_dir), "--apply", "--cut", "t-0")[0] == 10
    assert (log_dir / "t-0.0-cut" / checkpoints.LOG_START).exists()
    assert (examine(log_dir).found, examine(log_dir).end_offset) == ((), 16)


def test_the_directory_of_a_running_broker_is_refused(log_dir: Path) -> None:
    with (log_dir / checkpoints.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run(str(log_dir))[0] == 1


@pytest.mark.parametrize(
    "name", [checkpoints.CLEAN_SHUTDOWN, checkpoints.WHOLE_SINCE, checkpoints.RECOVERY_POINT_CHECKPOINT]
)
def test_an_entry_that_is_not_a_file_does_not_prevent_the_examination(log_dir: Path, name: str) -> None:
    (log_dir / name).unlink(missing_ok=True)
    (log_dir / name).mkdir()
    flip(segment(log_dir), 70)
    assert run(str(log_dir), *CUT)[0] == 10
    assert (log_dir / name).is_dir()


def test_a_lock_that_is_not_a_file_is_named(log_dir: Path) -> None:
    (log_dir / checkpoints.LOCK).mkdir()
    result = CliRunner().invoke(minibroker, ["log", "repair", str(log_dir)])
    assert result.exit_code == 1
    assert f"{log_dir}/.lock: Is a directory: move that entry away" in result.output


# ------------------------------------------------------------------------------------ what a broker checks at its start
def killed(log_dir: Path, boot_id: str = BOOT_ID, high_watermark: int = 0) -> None:
    """The state after the process was killed; with the same boot id the machine has not rebooted since."""
    (log_dir / checkpoints.CLEAN_SHUTDOWN).unlink()
    meta = MetaProperties(broker_id=1, cluster_id="c", directory_id="d", boot_id=boot_id)
    (log_dir / checkpoints.META_PROPERTIES).write_bytes(format_meta_properties(meta))
    points = checkpoints.format_offset_checkpoint({PARTITION: 0})
    (log_dir / checkpoints.RECOVERY_POINT_CHECKPOINT).write_bytes(points)
    high_watermarks = checkpoints.format_offset_checkpoint({PARTITION: high_watermark}, {PARTITION: "id"})
    (log_dir / checkpoints.HIGH_WATERMARK_CHECKPOINT).write_bytes(high_watermarks)


def remove(log_dir: Path, *bases: int) -> None:
    for base in bases:
        segment(log_dir, base).unlink()


def test_a_lost_head_is_named_and_a_cut_records_the_loss(log_dir: Path) -> None:
    """User finding 4: the broker refused such an only copy for ever, and all commands called it fine."""
    name_owner(log_dir, 0, 0)
    remove(log_dir, 0)
    found = examine(log_dir)
    assert found.damage is not None
    assert found.damage.what == "the log begins at 8, its log-start file explains only 0"
    code, output = run(str(log_dir), *CUT)
    assert code == 10
    assert "the cluster loses records 0 to 7, and those from offset 16 on" in output
    assert (examine(log_dir).found, examine(log_dir).start_offset, examine(log_dir).end_offset) == ((), 8, 16)
    start, _ = checkpoints.parse_log_start((log_dir / str(PARTITION) / checkpoints.LOG_START).read_bytes())
    assert start == LogStart(topic_id="id", partition=0, offset=8, reason=LogStartReason.TRIM)
    assert (log_dir / "t-0.0-cut" / checkpoints.LOG_START).exists()


def test_a_log_with_a_lost_head_and_without_a_topic_id_is_not_cut(log_dir: Path) -> None:
    remove(log_dir, 0)
    before = snapshot(log_dir)
    assert run(str(log_dir), "--apply", "--cut", "t-0")[0] == 1
    assert snapshot(log_dir) == before


def test_a_missing_tail_that_a_clean_stop_had_synced_is_damage(log_dir: Path) -> None:
    remove(log_dir, 8)
    damage = examine(log_dir).damage
    assert damage is not None
    assert (damage.what, damage.offset) == ("the log ends at 8, but a clean stop synced it up to 16", 8)
    assert run(str(log_dir), *CUT)[0] == 10
    assert (examine(log_dir).found, examine(log_dir).end_offset) == ((), 8)


def test_a_log_without_segments_that_once_had_records_is_damaged(log_dir: Path) -> None:
    remove(log_dir, 0, 8)
    damage = examine(log_dir).damage
    assert damage is not None
    assert "there is no segment, but the log once reached 16" in damage.what
    assert run(str(log_dir), *CUT)[0] == 10
    assert examine(log_dir).found == ()


@pytest.mark.parametrize(
    ("boot_id", "byte", "kind"),
    [(BOOT_ID, 70, "damaged"), ("another boot", 70, "torn tail"), ("another boot", 7, "damaged")],
    ids=["same-boot", "lost-power", "lost-power-and-the-batch-is-whole"],
)
def test_rot_before_sound_batches_is_a_torn_tail_only_where_a_write_may_be_torn(
    log_dir: Path, boot_id: str, byte: int, kind: str
) -> None:
    """User finding 6: it was called a torn tail and fine, and the next start deleted the batches after it."""
    killed(log_dir, boot_id)
    flip(segment(log_dir, 8), len(batch(8)) + byte)
    assert [each.kind for each in examine(log_dir).found] == [kind]


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_an_interrupted_write_is_a_torn_tail_on_any_boot(log_dir: Path, kept: float) -> None:
    killed(log_dir)
    with segment(log_dir, 8).open("ab") as file:
        file.write(batch(16)[: round(kept * len(batch(16)))])
    assert [each.kind for each in examine(log_dir).found] == ["torn tail"]
    assert run(str(log_dir))[0] == 0


@pytest.mark.parametrize(("boot_id", "is_damaged"), [(BOOT_ID, True), ("another boot", False)])
def test_a_log_that_ends_below_its_high_watermark_is_damaged_if_the_machine_did_not_reboot(
    log_dir: Path, boot_id: str, is_damaged: bool
) -> None:
    killed(log_dir, boot_id, high_watermark=16)
    remove(log_dir, 8)
    assert (examine(log_dir).damage is not None) == is_damaged


def promise(log_dir: Path, point: int, high_watermark: int, clean_end: int = 0, topic_id: str = "id") -> None:
    """Write the three files that record what the replica promised to keep."""
    killed(log_dir, "another boot")
    for name, offset in (
        (checkpoints.RECOVERY_POINT_CHECKPOINT, point),
        (checkpoints.HIGH_WATERMARK_CHECKPOINT, high_watermark),
    ):
        content = checkpoints.format_offset_checkpoint({PARTITION: offset}, {PARTITION: topic_id})
        (log_dir / name).write_bytes(content)
    if clean_end:
        known = checkpoints.WholeSince(incarnations=("i",), log_ends={PARTITION: clean_end})
        (log_dir / checkpoints.WHOLE_SINCE).write_bytes(checkpoints.format_whole_since(known))


@pytest.mark.parametrize(("known", "promised"), [((0, 0, 16), 16), ((16, 12, 0), 12), ((16, 0, 0), 0)])
def test_a_missing_tail_below_a_promised_end_is_damage_after_a_power_loss(
    log_dir: Path, known: tuple[int, int, int], promised: int
) -> None:
    """Once it was called fine, and the broker that started called the log damaged."""
    promise(log_dir, *known)
    remove(log_dir, 8)
    found = examine(log_dir)
    assert (found.promised_end, found.damage is not None) == (promised, promised > 0)


def test_rot_below_a_promised_end_is_damage(log_dir: Path) -> None:
    promise(log_dir, 0, 0, clean_end=16)
    flip(segment(log_dir, 8), len(batch(8)) + 70)
    assert [each.kind for each in examine(log_dir).found] == ["damaged"]


def test_promises_of_another_topic_do_not_count(log_dir: Path) -> None:
    name_owner(log_dir, 0, 0)
    promise(log_dir, 16, 16, topic_id="former")
    remove(log_dir, 8)
    assert (examine(log_dir).promised_end, examine(log_dir).damage) == (0, None)


def test_a_cut_below_a_promised_end_is_refused_until_the_loss_is_accepted(log_dir: Path) -> None:
    promise(log_dir, 16, 12, clean_end=12)
    flip(segment(log_dir), 2 * len(batch(0)) + 70)
    before = snapshot(log_dir)
    result = CliRunner().invoke(minibroker, ["log", "repair", str(log_dir), "--apply", "--cut", "t-0"])
    assert result.exit_code == 1
    named = "the cluster loses records from offset 4 on; this replica had promised to keep all below 12"
    assert f"nothing is cut without --accept-loss: t-0: {named}" in " ".join(result.output.split())
    assert snapshot(log_dir) == before
    code, output = run(str(log_dir), *CUT)
    assert code == 10
    assert named in output
    assert (examine(log_dir).found, examine(log_dir).promised_end) == ((), 4)


def test_a_cut_of_unpromised_records_needs_no_accept_loss(log_dir: Path) -> None:
    killed(log_dir)
    flip(segment(log_dir, 8), len(batch(8)) + 70)
    assert run(str(log_dir), "--apply", "--cut", "t-0")[0] == 10
    assert (examine(log_dir).found, examine(log_dir).end_offset) == ((), 10)


def test_leftovers_of_a_deletion_before_the_log_start_are_no_damage(log_dir: Path) -> None:
    name_owner(log_dir, 0)
    start = LogStart(topic_id="id", partition=0, offset=10, reason=LogStartReason.RETENTION)
    (log_dir / str(PARTITION) / checkpoints.LOG_START).write_bytes(checkpoints.format_log_start(start))
    segment(log_dir).write_bytes(batch(0))
    assert [each.kind for each in examine(log_dir).found] == ["leftover"]
    assert run(str(log_dir))[0] == 0


def test_an_older_epoch_checkpoint_is_removed_to_be_rebuilt(log_dir: Path) -> None:
    """A broker rebuilds it, because it lacks the epoch of the last batch."""
    later = b"".join(batch(8 + 2 * number, epoch=3) for number in range(BATCHES))
    segment(log_dir, 8).write_bytes(later)
    (found,) = examine(log_dir).found
    assert (found.kind, Path(found.file).name) == ("index", checkpoints.EPOCH_CHECKPOINT)
    assert run(str(log_dir), "--apply")[0] == 0
    assert examine(log_dir).found == ()


# ------------------------------------------------------------------------------------------------ entries of any kind
@pytest.mark.parametrize("put", [Path.mkdir, lambda path: path.symlink_to(path.name), os.mkfifo])
@pytest.mark.parametrize(
    "name",
    [
        checkpoints.segment_file_name(8),
        checkpoints.segment_file_name(0, checkpoints.INDEX_SUFFIX),
        checkpoints.EPOCH_CHECKPOINT,
        checkpoints.PARTITION_METADATA,
        checkpoints.LOG_START,
        checkpoints.DAMAGE_NOTE,
    ],
)
def test_an_entry_that_is_not_a_file_is_named(log_dir: Path, name: str, put: Callable[[Path], None]) -> None:
    path = log_dir / str(PARTITION) / name
    path.unlink(missing_ok=True)
    put(path)
    found = examine(log_dir)
    assert found.is_unreadable
    assert found.damage is not None
    assert f"{path} cannot be read" in found.damage.what
    assert run(str(log_dir), "--apply")[0] == 10
    assert os.path.lexists(path)
    assert run(str(log_dir), "--cut", "t-0")[0] == 1


def test_a_file_named_like_a_partition_is_named(log_dir: Path) -> None:
    (log_dir / "notes-2024").write_text("of a user")
    code, output = run(str(log_dir), "--apply")
    assert code == 10
    assert "notes-2024 cannot be read: Not a directory" in output
    assert (log_dir / "notes-2024").read_text() == "of a user"


@pytest.mark.parametrize("name", [checkpoints.EPOCH_CHECKPOINT, checkpoints.LOG_START, checkpoints.DAMAGE_NOTE])
def test_a_huge_file_is_not_read(log_dir: Path, name: str) -> None:
    with (log_dir / str(PARTITION) / name).open("wb") as file:
        file.truncate(30 << 30)
    examine(log_dir)
    run(str(log_dir), "--apply")


# --------------------------------------------------------------------------------------- what a broker would refuse
def test_a_missing_directory_of_a_partition_is_damage(log_dir: Path) -> None:
    """Once it was called fine, and the broker that started had a partition without a leader."""
    shutil.rmtree(log_dir / str(PARTITION))
    code, output = run(str(log_dir), "--apply")
    assert code == 10
    assert "its directory is missing; its log had reached offset 16 at least" in output
    assert "by hand: put the directory back if you have it" in output
    assert "did:" not in output
    assert not (log_dir / str(PARTITION)).exists()
    assert run(str(log_dir), "--cut", "t-0")[0] == 1
    assert json.loads(run(str(log_dir), "--apply", "--json")[1].splitlines()[0])["applied"] is False


@pytest.mark.parametrize("name", [checkpoints.RECOVERY_POINT_CHECKPOINT, f"{checkpoints.WHOLE_SINCE}.tmp"])
def test_an_entry_for_which_a_broker_refuses_to_start_is_named(log_dir: Path, name: str) -> None:
    (log_dir / name).unlink(missing_ok=True)
    (log_dir / name).mkdir()
    code, output = run(str(log_dir))
    assert code == 10
    assert f"a broker refuses to start: cannot open {log_dir / name}: Is a directory. Cure: move that entry" in output


def test_a_damaged_identity_is_named(log_dir: Path) -> None:
    (log_dir / checkpoints.META_PROPERTIES).write_text("")
    code, output = run(str(log_dir))
    assert code == 10
    assert "meta.properties lacks version. Cure: write its five lines again" in output


def test_logs_without_meta_properties_are_named(log_dir: Path) -> None:
    (log_dir / checkpoints.META_PROPERTIES).unlink()
    result = CliRunner().invoke(minibroker, ["log", "repair", str(log_dir)])
    assert result.exit_code == 1
    assert "has logs and no meta.properties: put the former one back" in result.output


def test_a_directory_that_is_not_a_log_dir_is_refused(tmp_path: Path) -> None:
    """Once /etc was reported to have logs, because of directories such as X-11."""
    (tmp_path / "X-11").mkdir()
    result = CliRunner().invoke(minibroker, ["log", "repair", str(tmp_path)])
    assert result.exit_code == 1
    assert "is not a broker's log.dir, it has no meta.properties: give the log.dir of" in result.output


def test_the_cure_of_a_file_without_permission_is_to_give_access(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the cure for a sound log was 'move away what cannot be read'."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(segment(log_dir)))

    monkeypatch.setattr(log_examination, "open_segment", refuse)
    code, output = run(str(log_dir))
    assert code == 10
    assert "Permission denied" in output
    assert "give the broker's user access to it (chmod, chown)" in output
    assert "move away" not in output


@pytest.mark.parametrize(
    ("name", "code", "why"), [("nosuch-0", 1, "there is no log of nosuch-0"), ("lines", 2, "is not TOPIC-PARTITION")]
)
def test_a_cut_of_a_missing_log_is_refused(log_dir: Path, name: str, code: int, why: str) -> None:
    result = CliRunner().invoke(minibroker, ["log", "repair", str(log_dir), "--cut", name])
    assert result.exit_code == code
    assert why in result.output


@pytest.mark.parametrize("command", ["verify", "dump"])
def test_a_directory_without_permission_is_reported_in_one_sentence(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Once it was a traceback."""

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(segment_files, "list_segments", refuse)
    result = CliRunner().invoke(minibroker, ["log", command, str(log_dir)])
    assert result.exit_code == 1
    assert f"{log_dir} cannot be read: Permission denied: " in result.output
