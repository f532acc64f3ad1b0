"""Whichever call of a broker's disk fails: once the disk works, all comes right without a restart of that broker.

Every replica is in sync again, nothing is offline or left undeleted, each acknowledged record is there, and no process
has ended. Only an input/output error may cost the broker its log directory until it is started again.

What fails is chosen by kind of error, call and kind of file, from `REACHED`: the story must reach each of them.
`tests/simulation/failed_disk_trials.py` draws more.
"""

from __future__ import annotations

import functools
from typing import get_args

import pytest

from tests.simulation.failed_disk_calls import MAY_FAIL, OF_THE_DIRECTORY, SECOND, Failure, Kind, Moment, Outcome, told

ONE_IS_ENOUGH: tuple[str, ...] = ("write",)
MADE = ("create", "rot")
"""A repair makes a replica again."""
CHANGED = ("come_back", "rot")
USED = (*MADE, "come_back")
REACHED: dict[str, dict[str, tuple[str, ...]]] = {
    "append": {"log": ONE_IS_ENOUGH, "index": ONE_IS_ENOUGH},
    "write_at": {"log-start": ("come_back",)},
    "truncate": {"log": ("come_back",)},
    "open": {
        "log": (*USED, "delete"),
        "index": CHANGED,
        "snapshot": CHANGED,
        "digests": CHANGED,
        "leader-epoch-checkpoint": USED,
        "log-start": USED,
        "partition.metadata": MADE,
    },
    "read": {
        "log": (*CHANGED, "delete"),
        "index": ("lead_alone", *CHANGED),
        "snapshot": ("come_back",),
        "leader-epoch-checkpoint": MADE,
        "log-start": MADE,
        "partition.metadata": ("rot",),
    },
    "replace_file": {
        "snapshot": CHANGED,
        "digests": CHANGED,
        "damage": ("rot",),
        "leader-epoch-checkpoint": USED,
        "log-start": MADE,
        "partition.metadata": MADE,
        "noted-changes": ONE_IS_ENOUGH,
        "recovery-point-offset-checkpoint": ONE_IS_ENOUGH,
        "replication-offset-checkpoint": ONE_IS_ENOUGH,
    },
    "rename": {"log": ("come_back",), "index": ("come_back",), "directory": ("rot", "delete")},
    "remove": {
        "log.deleted": ("lead_again",),
        "index.deleted": ("lead_again",),
        "snapshot": ("come_back",),
        "directory.0-delete": ("delete",),
        "directory.0-damaged": ("rot",),
    },
    "make_directory": {"directory": (*MADE, "create_again")},
    "list_directory": {"directory": MADE},
    "sync": dict.fromkeys(("log", "index", "snapshot", "digests", "log-start"), ONE_IS_ENOUGH)
    | dict.fromkeys(("leader-epoch-checkpoint", "partition.metadata"), ONE_IS_ENOUGH),
    "sync_directory": {"directory": ONE_IS_ENOUGH, "log directory": ONE_IS_ENOUGH},
}
"""By call and kind of file: chapters of the story that make it. A bad entry comes in each of them, because it concerns
one replica, and each caller handles it in its own way; the other errors in the first one, because the directory handles
them. What `replace_file` does within is not counted: its caller sees the same error."""


def cases() -> list[tuple[Kind, str, str, str]]:
    found: list[tuple[Kind, str, str, str]] = []
    for kind in get_args(Kind):
        for call, files in REACHED.items():
            if call not in MAY_FAIL[kind]:
                continue
            # An input/output error takes the whole directory offline, whatever the file.
            chosen = [each for each in files if kind != "entry" or each not in OF_THE_DIRECTORY]
            for file in chosen[:1] if kind == "io" else chosen:
                chapters = files[file] if kind == "entry" else files[file][:1]
                found += [(kind, chapter, call, file) for chapter in chapters]
    return found


@functools.cache
def without_failure() -> Outcome:
    return told()


def test_nothing_is_wrong_where_no_call_fails() -> None:
    assert without_failure().problems == []


def test_the_story_makes_each_call_that_is_to_fail() -> None:
    listed = {(call, file) for call, files in REACHED.items() for file in files}
    assert listed == {(call, file) for _, call, file in without_failure().counts if not file.endswith(".tmp")}
    chapters = {Moment(each, call, file) for call in REACHED for file in REACHED[call] for each in REACHED[call][file]}
    assert chapters <= set(without_failure().counts)


@pytest.mark.parametrize(("kind", "chapter", "call", "file"), cases())
def test_all_comes_right_after_a_failed_call(kind: Kind, chapter: str, call: str, file: str) -> None:
    replica = SECOND if chapter == "lead_alone" else None
    outcome = told((Failure(kind, Moment(chapter, call, file), replica=replica),))
    assert len(outcome.failed) == 1
    assert outcome.problems == []
