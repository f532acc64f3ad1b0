"""`minibroker log repair`: damage in the log directory of a stopped broker, and its repair."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from minibroker.command_line import (
    EXIT_FINE,
    EXIT_FOUND_WRONG,
    CommandFailed,
    json_option,
    print_json,
)
from minibroker.existing_path import ExistingPath
from minibroker.protocol.counted import counted
from minibroker.unread_output import read_or_not

if TYPE_CHECKING:
    from minibroker.offline.log_examination import ExaminedLog
    from minibroker.offline.top_entries import StartRefusal
    from minibroker.runtime.ports import DirectoryLock


class RepairStep(msgspec.Struct, frozen=True):
    """What is done about a problem."""

    text: str
    by_hand: bool = False
    """The operator must do it, not this command."""


@click.command()
@click.argument("log_dir", type=ExistingPath(file_okay=False, path_type=Path))
@click.option("--apply", "is_applied", is_flag=True, help="Do it; without this, only print what would be done.")
@click.option(
    "--cut",
    "cuts",
    multiple=True,
    metavar="TOPIC-PARTITION",
    help="For the only copy: keep what is before the damage, put the rest aside.",
)
@click.option("--accept-loss", is_flag=True, help="Cut even records that this replica had synced or committed.")
@json_option
@read_or_not()
def repair(log_dir: Path, is_applied: bool, cuts: tuple[str, ...], accept_loss: bool, as_json: bool) -> int:
    """Find damage in a stopped broker's log.dir, and repair it.

    Nothing is changed without --apply. A damaged log gets a note: the broker
    then sets it aside and fetches it again from its leader.
    With --cut of a partition the cluster loses its records from the damage on: they are named, and stay in a directory
    next to the log. If this replica had synced or committed some of them, --apply also needs --accept-loss. Exit code
    10 if anything is damaged.
    """
    from minibroker.offline.log_evidence import read_evidence
    from minibroker.offline.log_examination import examine_directory
    from minibroker.offline.top_entries import refusals
    from minibroker.runtime.adapters.disk import RealDisk

    _require_names(cuts)
    lock = _lock(log_dir, is_applied)
    try:
        refused = refusals(log_dir)
        examined = examine_directory(log_dir, read_evidence(log_dir, RealDisk().boot_id()))
        _require_cuts(log_dir, examined, cuts, accept_loss or not is_applied)
        for refusal in refused:
            _report_refusal(refusal, as_json)
        for each in examined:
            done = _cure(log_dir, each, each.partition in cuts, is_applied)
            _report(each, done, is_applied, as_json)
    finally:
        lock.release()
    damaged = [each for each in examined if each.damage is not None]
    if not as_json:
        words = [f"{len(damaged)} damaged"] if damaged else []
        words += ["a broker would not start"] if refused else []
        verdict = click.style(", ".join(words), fg="red") if words else click.style("fine", fg="green")
        click.echo(f"{verdict}: {counted(len(examined), 'partition')}, {sum(each.bytes for each in examined)} bytes")
        if damaged and not is_applied:
            loses = any(each.loses_what_was_promised and each.partition in cuts for each in damaged)
            click.echo(f"nothing was changed; repair with --apply{' --accept-loss' if loses else ''}")
    return EXIT_FOUND_WRONG if damaged or refused else EXIT_FINE


def _require_names(cuts: tuple[str, ...]) -> None:
    from minibroker.protocol.files.checkpoints import parse_partition_directory_name

    for name in cuts:
        if parse_partition_directory_name(name) is None:
            raise click.BadParameter(f"'{name}' is not TOPIC-PARTITION, such as orders-0", param_hint="--cut")


def _require_cuts(log_dir: Path, examined: "list[ExaminedLog]", cuts: tuple[str, ...], accepts_loss: bool) -> None:
    """Check before any change that each cut is possible and its loss is accepted."""
    unknown = sorted(set(cuts) - {each.partition for each in examined})
    if unknown:
        raise CommandFailed(f"there is no log of {', '.join(unknown)} in {log_dir}, so nothing is cut")
    sound = sorted(each.partition for each in examined if each.damage is None and each.partition in cuts)
    if sound:
        raise CommandFailed(f"not damaged, so nothing is cut: {', '.join(sound)}")
    unreadable = sorted(each.partition for each in examined if each.is_unreadable and each.partition in cuts)
    if unreadable:
        raise CommandFailed(f"cannot be read, so nothing is cut: {', '.join(unreadable)}")
    foreign = sorted(each.partition for each in examined if each.is_foreign and each.partition in cuts)
    if foreign:
        raise CommandFailed(f"log of another partition, which a cut does not repair: {', '.join(foreign)}")
    promised = [each for each in examined if each.loses_what_was_promised and each.partition in cuts]
    if promised and not accepts_loss:
        losses = "; ".join(f"{each.partition}: {_lost(each)}" for each in promised)
        raise CommandFailed(f"nothing is cut without --accept-loss: {losses}")


def _lock(log_dir: Path, is_applied: bool) -> "DirectoryLock":
    """Lock the directory: a running broker would change it during the examination."""
    from minibroker.offline.top_entries import READ_ONLY, WRITABLE_CURE, cure_of
    from minibroker.protocol.files.checkpoints import LOCK, META_PROPERTIES, parse_partition_directory_name
    from minibroker.runtime.adapters.disk import RealDisk
    from minibroker.runtime.ports import BadEntry, DiskError, DiskFull, LockHeld

    if not (log_dir / META_PROPERTIES).exists():
        names = (each for each in log_dir.iterdir() if parse_partition_directory_name(each.name) is not None)
        if any(next(each.glob("*.log"), None) is not None for each in names):
            raise CommandFailed(
                f"{log_dir} has logs and no {META_PROPERTIES}: put the former one back; if a broker makes a new one,"
                " these logs do not count until they have caught up with a leader"
            )
        raise CommandFailed(
            f"{log_dir} is not a broker's log.dir, it has no {META_PROPERTIES}: give the log.dir of the broker's"
            f" settings, such as {_log_dir_near(log_dir)}"
        )
    if is_applied:
        _require_owner(log_dir, (log_dir / META_PROPERTIES).stat().st_uid)
    in_use = f"{log_dir} is in use: stop its broker first"
    if is_applied or os.path.lexists(log_dir / LOCK):  # an examination makes none: no broker runs, nothing is changed
        try:
            return RealDisk().lock(f"{log_dir}/{LOCK}")
        except LockHeld:
            raise CommandFailed(in_use) from None
        except BadEntry as error:
            cure = cure_of(str(error), "move that entry away")
            raise CommandFailed(f"{error}: {cure}, or run this as the broker's user") from None
        except DiskError as error:
            if is_applied:
                other = "free space on its disk" if isinstance(error, DiskFull) else "see whether its disk works"
                cure = WRITABLE_CURE if READ_ONLY in str(error) else other
                raise CommandFailed(f"nothing is repaired: {error}: {cure}, and run this again") from None
    lock = _lock_without_writing(log_dir / LOCK)
    if lock is None:
        raise CommandFailed(in_use)
    return lock


def _require_owner(log_dir: Path, owner: int) -> None:
    """What another user writes there, root above all, the broker may not change: it would count as damage."""
    import pwd

    if owner == os.geteuid():
        return
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = str(owner)
    raise CommandFailed(
        f"nothing is repaired: {log_dir} is of user {name}, whose broker could not change files that you make there:"
        f" run this as that user, as root with `setpriv --reuid {name} --clear-groups` in front"
    )


def _log_dir_near(directory: Path) -> Path:
    """A cluster's data directory holds log directories, and a partition's directory is in one."""
    from minibroker.protocol.files.checkpoints import META_PROPERTIES

    places = (*sorted(directory.iterdir()), directory.parent)
    found = (each for each in places if os.path.exists(each / META_PROPERTIES))
    return next(found, Path("minibroker-data/broker-1"))


def _lock_without_writing(file: Path) -> "DirectoryLock | None":
    """Where no file can or must be written, as on a read-only file system. None: a process holds it."""
    import fcntl

    from minibroker.runtime.adapters.disk import RealDirectoryLock

    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return RealDirectoryLock(-1)  # then no broker holds it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return RealDirectoryLock(descriptor)


def _cure(log_dir: Path, examined: "ExaminedLog", is_cut: bool, is_applied: bool) -> "list[RepairStep]":
    """Repair one log, or list what would be done, and what the operator must do."""
    from minibroker.offline import log_repair
    from minibroker.offline.top_entries import cure_of

    steps: list[RepairStep] = []
    if examined.damage is not None and is_cut:
        try:
            where = log_repair.cut(log_dir, examined) if is_applied else "a directory next to the log"
        except log_repair.CannotCut as error:
            raise CommandFailed(str(error)) from None
        steps.append(RepairStep(f"cut at offset {examined.end_offset}, the rest goes to {where}: {_lost(examined)}"))
    elif examined.is_foreign:
        name = Path(examined.directory).with_name(examined.belongs_to)
        text = (
            f"rename it to {name} if it came from there; otherwise the broker sets it aside and fetches"
            f" {examined.partition} again once another broker leads"
        )
        steps.append(RepairStep(text, by_hand=True))
    elif examined.is_missing:
        text = (
            "put the directory back if you have it; otherwise the broker fetches the partition again once another"
            f" broker leads (without a leader: `minibroker partition elect {examined.partition}`)"
        )
        steps.append(RepairStep(text, by_hand=True))
    elif examined.is_unreadable:
        assert examined.damage is not None
        cure = cure_of(examined.damage.what, "move away what cannot be read, to use the rest")
        text = (
            f"{cure}; otherwise the broker sets the directory aside and fetches the partition again once another"
            " broker leads"
        )
        steps.append(RepairStep(text, by_hand=True))
    elif examined.damage is not None:
        note = log_repair.write_damage_note(examined) if is_applied else "a note"
        text = (
            f"write {note}: the broker sets the log aside and fetches it again once another broker leads"
            f" (if no broker has another copy: `--cut {examined.partition}` keeps the sound part)"
        )
        steps.append(RepairStep(text))
    rebuildable = [each.file for each in examined.found if each.kind == "index"]
    if rebuildable:
        removed = log_repair.remove_rebuildable_files(examined) if is_applied else sorted(set(rebuildable))
        steps.append(RepairStep(f"remove, the next start rebuilds it: {', '.join(removed)}"))
    return steps


def _lost(examined: "ExaminedLog") -> str:
    """The records that a cut loses, and those that are gone already."""
    head = "" if examined.begins_at is None else f" {examined.start_offset} to {examined.begins_at - 1}, and those"
    lost = f"the cluster loses records{head} from offset {examined.end_offset} on"
    if not examined.loses_what_was_promised:
        return lost
    return f"{lost}; this replica had promised to keep all below {examined.promised_end}"


def _report(examined: "ExaminedLog", steps: "list[RepairStep]", is_applied: bool, as_json: bool) -> None:
    if as_json:
        done = is_applied and any(not step.by_hand for step in steps)
        print_json({**msgspec.to_builtins(examined), "steps": [step.text for step in steps], "applied": done})
        return
    if not examined.found:
        return
    click.secho(examined.partition, bold=True)
    for each in examined.found:
        at = "" if each.position is None else f" at {each.position}"
        offset = "" if each.offset is None else f", offset {each.offset}"
        click.echo(f"  {each.kind}: {each.file}{at}{offset}: {each.what}")
    for step in steps:
        how = "by hand" if step.by_hand else "did" if is_applied else "would do"
        click.echo(f"  {how}: {step.text}")


def _report_refusal(refusal: "StartRefusal", as_json: bool) -> None:
    if as_json:
        print_json({**msgspec.to_builtins(refusal), "refused": True})
    else:
        click.echo(f"a broker refuses to start: {refusal.what}. Cure: {refusal.cure}")
