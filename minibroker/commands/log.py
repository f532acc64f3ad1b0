"""`minibroker log dump` and `log verify`: read segment files, offline. `log repair` is in `log_repair`."""

from pathlib import Path
from typing import Any

import click

from minibroker.command_line import (
    EXIT_FINE,
    EXIT_FOUND_WRONG,
    CommandFailed,
    LazyGroup,
    ProgressLine,
    json_option,
    print_json,
)
from minibroker.existing_path import ExistingPath
from minibroker.protocol.counted import counted
from minibroker.unread_output import read_or_not

COMMANDS = {
    "dump": ("minibroker.commands.log:dump", "Print batches, and with --records their records."),
    "verify": ("minibroker.commands.log:verify", "Check CRCs, offsets, epochs, indexes and owner."),
    "repair": (
        "minibroker.commands.log_repair:repair",
        "Find damage in a stopped broker's log.dir, and repair it.",
    ),
}
PATH = click.argument("path", type=ExistingPath(path_type=Path))


@click.group(cls=LazyGroup, lazy=COMMANDS)
def log() -> None:
    """Inspect and repair segment files, offline.

    PATH is a segment file, a partition's directory, a broker's log.dir or a cluster's data directory.
    """


def _segments(path: Path) -> list[Path]:
    from minibroker.offline.segment_files import find_segments

    try:
        segments = find_segments(path)
    except OSError as error:
        what = f"{error.filename or path} cannot be read: {error.strerror}"
        raise CommandFailed(f"{what}: give yourself access to it, or run this as the broker's user") from None
    if not segments:
        raise CommandFailed(f"{path} holds no segment files (*.log of a partition): give a log.dir or a file in it")
    return segments


@click.command()
@PATH
@click.option("--records", "with_records", is_flag=True, help="Also print each record.")
@json_option
def dump(path: Path, with_records: bool, as_json: bool) -> int:
    """Print batches, and with --records their records.

    The leader epochs of leader-epoch-checkpoint come first. Exit code 10 if a batch or that file is damaged.
    """
    from minibroker.file_progress import FileProgress
    from minibroker.offline.segment_files import SegmentProblem, open_segment, unreadable, walk

    segments = _segments(path)
    damaged = bool(_print_owner_problems(segments, as_json))
    for directory in sorted({segment.parent for segment in segments}):
        damaged |= _print_epochs(directory, as_json)
    progress = FileProgress()
    for number, segment in enumerate(segments, start=1):
        if not as_json:
            click.secho(str(segment), bold=True)
        try:
            content = open_segment(segment)
        except OSError as error:
            damaged = True
            _print_problem(segment, 0, unreadable(segment, error).what, as_json)
            continue
        for item in walk(content):
            if progress.due():
                progress.show(f"{number} of {len(segments)} files, {100 * item.position // len(content)} % of it")
            if isinstance(item, SegmentProblem):
                damaged = True
                _print_problem(segment, item.position, item.what, as_json)
                continue
            damaged |= item.problem is not None
            if as_json:
                print_json({"file": str(segment), "position": item.position, **_fields(item.header, item.problem)})
            else:
                words = (f"{name}: {value}" for name, value in _fields(item.header, item.problem).items())
                click.echo(f"position: {item.position} {' '.join(words)}")
            if with_records and item.problem is None:
                _print_records(content[item.position : item.position + item.header.size_bytes], as_json)
    progress.clear()
    return EXIT_FOUND_WRONG if damaged else EXIT_FINE


def _print_epochs(directory: Path, as_json: bool) -> bool:
    """Each leader epoch with the offset at which it begins. Returns whether the file is damaged; it may be absent."""
    from minibroker.offline.log_evidence import read_small
    from minibroker.protocol.files.checkpoints import EPOCH_CHECKPOINT, CorruptCheckpoint, parse_epoch_checkpoint

    file = directory / EPOCH_CHECKPOINT
    try:
        entries = parse_epoch_checkpoint(read_small(file))
    except FileNotFoundError:
        return False
    except (CorruptCheckpoint, OSError) as error:
        _print_problem(file, 0, str(error), as_json)
        return True
    if not as_json:
        click.secho(str(file), bold=True)
    for epoch, start_offset in entries:
        if as_json:
            print_json({"file": str(file), "leaderEpoch": epoch, "startOffset": start_offset})
        else:
            click.echo(f"leader epoch: {epoch} start offset: {start_offset}")
    return False


def _print_owner_problems(segments: list[Path], as_json: bool) -> int:
    """Print which directories hold another partition's log; returns the number of problems."""
    from minibroker.offline.segment_files import owner_problems

    problems = [problem for found in owner_problems(segments).values() for problem in found]
    for problem in problems:
        _print_problem(Path(problem.file), problem.position, problem.what, as_json)
    return len(problems)


def _print_problem(segment: Path, position: int, what: str, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(segment), "position": position, "problem": what})
    else:
        click.echo(f"{segment}: position {position}: {what}")


def _fields(header: Any, problem: str | None) -> dict[str, Any]:
    """The fields of a batch under the names that kafka-dump-log prints."""
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "CreateTime": header.max_timestamp,
        "size": header.size_bytes,
        "magic": header.magic,
        "crc": header.crc,
        "isvalid": problem is None,
    } | ({} if problem is None else {"problem": problem})


def _print_records(batch: bytes, as_json: bool) -> None:
    from minibroker.protocol.record_batch import CorruptBatch, decode_records
    from minibroker.records.record_format import record_as_json

    try:
        records = decode_records(batch)
    except CorruptBatch as error:
        click.echo(f"| {error.reason}")
        return
    for record in records:
        if as_json:
            print_json(record_as_json(record))
        else:
            headers = f" headers: {list(record.headers)}" if record.headers else ""
            click.echo(
                f"| offset: {record.offset} CreateTime: {record.timestamp_ms}"
                f" key: {_text(record.key)} payload: {_text(record.value)}{headers}"
            )


def _text(value: bytes | None) -> str:
    return "null" if value is None else repr(value)[1:]


@click.command()
@PATH
@json_option
@read_or_not()
def verify(path: Path, as_json: bool) -> int:
    """Check CRCs, offsets, epochs, indexes and owner.

    Exit code 10 if there is a problem. Segments that are gone are one, too, except at the end of a log: those are
    found by `minibroker log repair`, and by `minibroker audit`, which compares replicas with each other.
    """
    from minibroker.offline.missing_segments import missing_segments
    from minibroker.offline.segment_files import verify_segment
    from minibroker.runtime.adapters.disk import RealDisk

    batches = records = 0
    segments = _segments(path)
    wrong = _print_owner_problems(segments, as_json)
    ends: dict[Path, int | None] = {}
    progress = ProgressLine()
    for number, segment in enumerate(segments, start=1):
        progress.show(f"{number} of {len(segments)} files, {records} records")
        more_batches, more_records, problems, ends[segment] = verify_segment(segment)
        batches, records, wrong = batches + more_batches, records + more_records, wrong + len(problems)
        progress.clear() if problems else None
        for problem in problems:
            _print_problem(Path(problem.file), problem.position, problem.what, as_json)
    progress.clear()
    for problem in missing_segments(path, segments, ends, RealDisk().boot_id()):
        wrong += 1
        _print_problem(Path(problem.file), problem.position, problem.what, as_json)
    if as_json:
        print_json({"files": len(segments), "batches": batches, "records": records, "problems": wrong})
    else:
        verdict = click.style("fine", fg="green") if not wrong else click.style(counted(wrong, "problem"), fg="red")
        numbers = (counted(len(segments), "file"), counted(batches, "batch"), counted(records, "record"))
        click.echo(f"{verdict}: {', '.join(numbers)}")
    return EXIT_FOUND_WRONG if wrong else EXIT_FINE
