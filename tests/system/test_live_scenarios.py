"""Scenarios on real processes end like the simulated ones: with the same last rows and audit findings.

One fixture runs a few of them at a time, because each spends most of its time waiting for sessions to end.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from minibroker.command_line import EXIT_COULD_NOT, EXIT_INTERRUPTED, EXIT_USAGE
from minibroker.local_cluster.processes import identify
from minibroker.scenarios.catalogue import all_scenarios, find_scenario
from minibroker.scenarios.live.played_variant import audited, play_live
from minibroker.scenarios.staging.played_variant import PlayedVariant
from minibroker.scenarios.staging.rows import ReplicaRow
from minibroker.scenarios.staging.scenario import HIGH_WATERMARK, LEADER_EPOCH, TruncationRule

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

AT_A_TIME = 3
SECONDS_MAX = 60.0
"""For one variant; alone it takes less than half as long."""

Key = tuple[str, str, TruncationRule]

ENDS: dict[Key, tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("two-rounds", "", LEADER_EPOCH): (("A leader epoch 0 HW 1: m0", "B follower epoch 0 HW 1: m0"), ()),
    ("loss", "new-epoch", LEADER_EPOCH): (
        ("A follower epoch 2 HW 2: m0 m1", "B leader epoch 2 HW 2: m0 m1", "C follower epoch 2 HW 2: m0 m1"),
        (),
    ),
    ("loss", "new-epoch", HIGH_WATERMARK): (
        ("A follower epoch 2 HW 1: m0", "B leader epoch 2 HW 1: m0", "C follower epoch 2 HW 1: m0"),
        ("acked-missing",),
    ),
    ("divergence", "unclean", HIGH_WATERMARK): (
        ("A follower epoch 1 HW 3: m0 m1 m3", "B leader epoch 1 HW 3: m0 m2 m3"),
        ("diverged-below-high-watermark",),
    ),
    ("min-isr", "", LEADER_EPOCH): (
        (
            "A leader epoch 0 HW 3: m0 m1 m3",
            "B follower epoch 0 HW 3: m0 m1 m3",
            "C follower epoch 0 HW 3: m0 m1 m3",
        ),
        (),
    ),
    ("unclean-election", "true", LEADER_EPOCH): (
        ("A follower epoch 1 HW 2: m0 m2", "B leader epoch 1 HW 2: m0 m2"),
        ("acked-changed", "acked-twice"),
    ),
    ("stale-metadata", "traffic", LEADER_EPOCH): (
        ("A follower epoch 1 HW 2: m0 m1", "B leader epoch 1 HW 2: m0 m1"),
        (),
    ),
    ("stuck-follower", "", LEADER_EPOCH): (
        (
            "A leader epoch 0 HW 3: m0 m1 m2",
            "B follower epoch 0 HW 3: m0 m1 m2",
            "C follower epoch 0 HW 3: m0 m1 m2",
        ),
        (),
    ),
    ("zombie-leader", "writes", LEADER_EPOCH): (
        (
            "A follower epoch 1 HW 3: m0 n1 m1",
            "B leader epoch 1 HW 3: m0 n1 m1",
            "C follower epoch 1 HW 3: m0 n1 m1",
        ),
        (),
    ),
    # Leader and epoch after the outage are not checked: the sessions may have survived or expired.
    ("zookeeper-outage", "partitioned", LEADER_EPOCH): (("A HW 2: m0 m1", "B HW 2: m0 m1", "C HW 2: m0 m1"), ()),
}

NOT_PLAYED = {("epochs", ""), ("unclean-election", "false"), ("zookeeper-outage", "quiet")}
"""Live variants without a test on real processes."""


class Played(NamedTuple):
    """All of `ENDS`."""

    results: dict[Key, PlayedVariant | BaseException]
    left_over: list[Path]
    """In the directory for temporary files, which was empty before."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Run all, `AT_A_TIME`; an exception fails the test of its scenario."""
    places = asyncio.Semaphore(AT_A_TIME)

    async def play(key: Key) -> PlayedVariant:
        name, variant_name, rule = key
        variant = next(variant for variant in find_scenario(name).variants if variant.name == variant_name)
        async with places, asyncio.timeout(SECONDS_MAX):
            with tempfile.TemporaryDirectory() as place:
                play = await play_live(variant, rule, lambda step: None, Path(place))
                return await asyncio.to_thread(audited, play, "local")

    async def play_all() -> dict[Key, PlayedVariant | BaseException]:
        found = await asyncio.gather(*(play(key) for key in ENDS), return_exceptions=True)
        return dict(zip(ENDS, found, strict=True))

    directory = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(directory))
        results = asyncio.run(play_all())
    return Played(results, list(directory.iterdir()))


@pytest.mark.parametrize("key", ENDS, ids=lambda key: "-".join(filter(None, (key[0], key[1], key[2].value))))
def test_a_live_scenario_ends_as_expected(key: Key, played: Played) -> None:
    result = played.results[key]
    if isinstance(result, BaseException):
        raise result
    assert result.problem is None
    rows, findings = ENDS[key]
    assert tuple(summary(key, row) for row in result.steps[-1].rows) == rows
    assert result.verdict.findings == findings


def test_a_live_scenario_leaves_no_file(played: Played) -> None:
    assert played.left_over == []


def summary(key: Key, row: ReplicaRow) -> str:
    """The expected properties of a broker at the end."""
    leadership = "" if key[0] == "zookeeper-outage" else f"{row.role} epoch {row.leader_epoch} "
    records = " ".join(row.records)
    if key[0] == "zombie-leader":
        records = records.replace("m1 n1", "n1 m1")  # either of two producers may find the new leader first
    return f"{row.broker} {leadership}HW {row.high_watermark}: {records}"


def test_every_live_act_has_an_expected_end_or_is_not_played() -> None:
    live = {(each.name, variant.name) for each in all_scenarios() for variant in each.variants if variant.live}
    assert {(name, variant) for name, variant, _ in ENDS} | NOT_PLAYED == live


def scenario_run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "minibroker", "scenario", "run", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_missing_java_is_reported_in_one_sentence(tmp_path: Path) -> None:
    ran = scenario_run("two-rounds", "--live", environment={"PATH": str(tmp_path)})
    assert ran.returncode == EXIT_COULD_NOT
    assert ran.stderr.count("\n") == 1 and "no Java found" in ran.stderr, ran.stderr


def test_a_scenario_that_needs_a_simulation_says_so() -> None:
    ran = scenario_run("zombie-controller", "--live")
    assert ran.returncode == EXIT_USAGE
    assert "run it without --live" in ran.stderr, ran.stderr


def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "minibroker", "scenario", "run", "stuck-follower", "--live"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    run = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith("1. "):
            break
    started = [int(pid) for pid in re.findall(r'"pid": (\d+)', next(tmp_path.glob("*/cluster.json")).read_text())]
    assert len(started) == 5  # ZooKeeper and four brokers
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=30)
    assert run.returncode == EXIT_INTERRUPTED
    assert "Traceback" not in errors, errors
    assert [pid for pid in started if identify(pid) is not None] == []
    assert list(tmp_path.iterdir()) == []
