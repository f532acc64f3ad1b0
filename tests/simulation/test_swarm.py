"""The unmodified cluster under random faults: nothing acknowledged is lost, nothing read changes, everything heals.

A hundred seeds are always the same, past failures first; a hundred belong to the commit; `SEEDS=first-last` replaces
them. A failure prints its seed, the findings, and the command that shows the run.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replicas.replica_manager import ReplicaManager
from minibroker.broker.requests import offset_requests
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import EARLIEST_TIMESTAMP, ListOffsetsPartition, ListOffsetsPartitionResponse
from minibroker.simulation.checks.finding import CheckerFinding
from minibroker.simulation.swarm.beyond import detection_errors
from minibroker.simulation.swarm.choices import ALL_DRAWN, NOTHING_DRAWN, RunChoices, choices_of
from minibroker.simulation.swarm.loads.mirror_reader import READER_ACTS
from minibroker.simulation.swarm.narrator import NarratedLine
from minibroker.simulation.swarm.run import run_beyond, run_seed
from minibroker.simulation.world.node import ProcessDead
from minibroker.swarm_runs import RUNS_TO_SEE_ALL, SwarmSummary, run_many
from tests.minibroker.run_results import run_result
from tests.simulation.fresh_seeds import COVERING, fresh_seeds

SEEDS_FILE = Path(__file__).parents[2] / "simulation" / "seeds.txt"
SECONDS_MAX = 1_200
"""Three times what it takes on two free cores."""


def past_failures() -> dict[str, list[int]]:
    """By mode, the seeds that once found a bug."""
    found: dict[str, list[int]] = {}
    for line in SEEDS_FILE.read_text().splitlines():
        if words := line.partition("#")[0].split():
            seed, mode = words
            found.setdefault(mode, []).append(int(seed))
    return found


def batches() -> list[tuple[Sequence[int], RunChoices]]:
    """The seeds of the environment, or those that make test runs; as each seed draws, or with faulty disks and loads
    as a past failure had them."""
    wanted = os.environ.get("SEEDS")
    if wanted:
        first, _, last = wanted.partition("-")
        return [(range(int(first), int(last or first) + 1), ALL_DRAWN)]
    past = [(seeds, choices_of(mode)) for mode, seeds in past_failures().items()]
    return [([*COVERING, *fresh_seeds()[0]], ALL_DRAWN), *past]


class Swarm(NamedTuple):
    """All runs."""

    total: SwarmSummary
    replays: dict[int, str]
    """The command for each failed seed."""


@pytest.fixture(scope="module")
def swarm() -> Swarm:
    """On all cores."""
    found = Swarm(SwarmSummary(), {})
    for seeds, choices in batches():
        for result in run_many(seeds, choices=choices):
            found.total.add(result)
            if result.findings:
                found.replays[result.seed] = choices.replay(result.seed)
    return found


@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.invariant(
    *("I1", "I4", "I11", "I18", "I20", "I21", "I22", "I23", "I25", "I26", "I27", "I28", "I30", "I36", "I37", "I38")
)
def test_cluster_keeps_its_promises_under_faults(swarm: Swarm) -> None:
    failed = swarm.total.failed
    if failed:
        shown = [
            "\n".join([f"seed {seed}: {findings[0]}", *findings[1:3], f"replay with: {swarm.replays[seed]}"])
            for seed, findings in sorted(failed.items())[:5]
        ]
        pytest.fail(f"{len(failed)} of {swarm.total.runs} runs failed:\n" + "\n".join(shown), pytrace=False)


def test_nearly_every_run_has_enough_events(swarm: Swarm) -> None:
    """200 acknowledged records of 3 producers, 2 consumers, 2 elections, 1 truncation."""
    assert swarm.total.counted >= 0.98 * swarm.total.runs, swarm.total.not_counted


def test_swarm_sees_every_kind_of_event_and_injects_every_kind_of_fault(swarm: Swarm) -> None:
    if swarm.total.runs < RUNS_TO_SEE_ALL:
        pytest.skip("so few runs may miss a rare event")
    assert swarm.total.never_seen == []


# -------------------------------------------------------------------------------------------------------- determinism
def test_one_seed_is_one_run_after_others_and_with_a_listener() -> None:
    lines: list[NarratedLine] = []
    first = run_seed(11)
    run_seed(5)
    again = run_seed(11, on_line=lines.append)
    assert first.trace_hash == again.trace_hash
    assert any(line.partition is not None for line in lines)


def test_one_seed_is_one_run_in_another_process_and_under_another_hash_seed() -> None:
    hashes = {run_seed(7).trace_hash}
    for hash_seed in ("0", "1"):
        found = subprocess.run(
            [sys.executable, "-m", "minibroker", "simulate", "--seed", "7", "--json", "--quiet"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            timeout=60,
        )
        hashes.add(json.loads(found.stdout)["trace_hash"])
    assert len(hashes) == 1


def test_run_counts_only_with_enough_of_everything() -> None:
    outcome = run_seed(11)
    assert outcome.counts, outcome.missing
    outcome.elections = 1
    assert outcome.missing == ["elections: 1 of 2"]


def test_log_that_seems_to_begin_at_its_end_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last reader was told that every log was empty, read nothing, and no acknowledged record was missed."""
    answer = offset_requests._list_offsets

    def forgetful(
        manager: ReplicaManager, partition: Partition, asked: ListOffsetsPartition, is_follower: bool
    ) -> ListOffsetsPartitionResponse:
        found = answer(manager, partition, asked, is_follower)
        is_earliest = asked.timestamp == EARLIEST_TIMESTAMP and not is_follower and not found.error_code
        return replace(found, offset=partition.state.high_watermark) if is_earliest else found

    assert run_seed(1, choices=NOTHING_DRAWN).findings == []
    monkeypatch.setattr(offset_requests, "_list_offsets", forgetful)
    found = {each.invariant: each for each in run_seed(1, choices=NOTHING_DRAWN).findings}
    assert "I23" in found, found


# ------------------------------------------------------------------------------------------------- beyond the promise
BY_DISASTER = {"last_member_loses_power": 1, "in_sync_disks_replaced": 2, "all_lose_power": 4, "unclean_election": 9}


@pytest.mark.parametrize(("disaster", "seed"), BY_DISASTER.items())
def test_loss_beyond_the_promise_is_named_and_replicas_are_identical_again(disaster: str, seed: int) -> None:
    outcome = run_beyond(seed)
    assert outcome.injected == {f"disaster {disaster}": 1}
    assert outcome.losses
    assert all(loss.partition is not None and "offset" in loss.text for loss in outcome.losses)
    assert outcome.findings == []
    assert all(outcome.coverage.seen[each] for each in READER_ACTS), "readers learned of it"


def test_loss_that_a_detector_does_not_name_is_a_finding() -> None:
    here, there = TopicPartition("a", 0), TopicPartition("a", 1)
    by_history = [CheckerFinding(invariant="I21", text="offset 7 lost its record", partition=here)]
    by_audit = [CheckerFinding(invariant="audit:acked-missing", text="gone", partition=here)]
    assert detection_errors({(here, 7)}, by_history, by_audit) == []
    assert len(detection_errors({(here, 7), (here, 8)}, by_history, by_audit)) == 1
    assert len(detection_errors({(here, 7), (there, 1)}, by_history, by_audit)) == 2
    assert len(detection_errors(set(), by_history, by_audit)) == 1


# ------------------------------------------------------------------------------------------------ the swarm's summary
def test_kind_of_event_that_many_runs_never_saw_is_a_failure_of_the_swarm() -> None:
    total = SwarmSummary()
    for seed in range(RUNS_TO_SEE_ALL - 1):
        total.add(run_result(seed, seen={"election": 1}))
    assert total.complaints == []
    total.add(run_result(seen={"election": 1}))
    assert "election" not in total.never_seen
    assert any("never seen in 200 runs: ISR shrunk" in each for each in total.complaints)
    assert any("sequence tail" in each for each in total.never_seen)


def test_few_runs_of_which_most_show_nothing_are_a_failure_of_the_swarm() -> None:
    """Of up to 199 runs none had to count: brokers that acknowledge nothing break no invariant."""
    total = SwarmSummary()
    for seed in range(20):
        assert total.complaints == []
        total.add(replace(run_result(seed), missing=("acknowledged records: 0 of 200",)))
    (complaint,) = total.complaints
    assert complaint.startswith("only 0 of 20 runs count")


def test_failed_run_is_a_complaint_with_its_seed() -> None:
    total = SwarmSummary()
    total.add(run_result(17, "I21 lost"))
    assert total.complaints == ["seed 17: I21 lost"]


def test_history_of_a_finding_is_short_and_about_its_partition() -> None:
    lines: list[NarratedLine] = []
    outcome = run_seed(11, on_line=lines.append)
    assert outcome.narrator is not None
    last = next(line for line in reversed(lines) if line.partition is not None)
    finding = CheckerFinding(invariant="I20", text="planted", at_seconds=last.at_seconds, partition=last.partition)
    history = outcome.narrator.shortest_history(finding)
    assert 0 < len(history) < len(lines)
    assert {line.partition for line in history} <= {None, last.partition}


def test_a_check_of_a_dead_process_is_a_finding_and_ends_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """ProcessDead is no Exception: once it ended a worker, and `simulate` waited for its result for ever."""

    async def die(*_: object) -> None:
        raise ProcessDead("broker-3")

    monkeypatch.setattr("minibroker.simulation.swarm.run._drive", die)
    assert [str(each.text) for each in run_seed(1).findings] == ["the run ended with ProcessDead: broker-3"]
