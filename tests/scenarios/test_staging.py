"""Playing a scenario: what is reported when it deviates from its script, and how a slide looks."""

import msgspec

from minibroker.scenarios.catalogue import find_scenario
from minibroker.scenarios.patches import answers_without_epoch
from minibroker.scenarios.staging.played_variant import play_variant
from minibroker.scenarios.staging.rows import Expected, ReplicaRow, changed_cells, shortened
from minibroker.scenarios.staging.scenario import LEADER_EPOCH, Ending, Setup, Variant
from minibroker.scenarios.staging.slides import heading, slide
from minibroker.scenarios.staging.stage import ScenarioStep, Stage

ROW = ReplicaRow(broker="A", role="leader", leader_epoch=0, log_end_offset=1, high_watermark=0, records=("m0",))


async def expects_too_much(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.step("m0 is written.", within_seconds=2, A=Expected(leo=2))
    return Ending(lesson="never")


async def expects_a_loss(stage: Stage) -> Ending:
    await stage.write("m0")
    return Ending(lesson="m0 is lost", findings=("acked-missing",))


def play_alone(play: object) -> Variant:
    return Variant(setup=Setup(brokers="A", replicas="A"), play=play)  # type: ignore[arg-type]


def test_an_expectation_that_never_comes_true_is_named_and_shown() -> None:
    played = play_variant(play_alone(expects_too_much), LEADER_EPOCH)
    assert played.problem == "A: LEO is 1, expected 2"
    assert played.steps[-1].rows[0].records == ("m0",)


def test_an_audit_that_finds_less_than_expected_is_a_failure() -> None:
    played = play_variant(play_alone(expects_a_loss), LEADER_EPOCH)
    assert played.problem == "the audit should find acked-missing, and found none"


def test_a_broker_with_the_wrong_rule_fails_the_scenario() -> None:
    with answers_without_epoch():
        played = play_variant(find_scenario("fast-failover").variants[0], LEADER_EPOCH)
    assert played.problem == "B: epoch file is (0, 0) (1, 1) (3, 2), expected (0, 0) (3, 2);" + (
        " B: records is m0 n1 m2, expected m0 m1 m2"
    )


def test_a_slide_marks_what_is_new() -> None:
    after = msgspec.structs.replace(ROW, high_watermark=1)
    step = ScenarioStep(
        number=2,
        sentence="HW rises.",
        notes=("producer: m0 acknowledged",),
        rows=(after,),
        changed=tuple(changed_cells([ROW], [after])),
        reference="leader A, epoch 0, ISR A",
        at_seconds=0.0,
    )
    assert slide(step) == [
        "2. HW rises.",
        "   - producer: m0 acknowledged",
        "",
        "   BROKER  ROLE    EPOCH  LEO  HW   REMOTE LEO  ISR  EPOCH FILE  RECORDS",
        "   A       leader  0      1    1 *  -           -    -           m0",
        "   ZooKeeper: leader A, epoch 0, ISR A",
        "",
    ]


def test_the_heading_explains_the_columns_and_how_new_cells_are_marked() -> None:
    """Once it spoke of stars where cells are highlighted, and of neither the ISR nor the epoch file."""
    scenario = find_scenario("loss")
    plain, coloured = (
        heading(scenario, scenario.variants[0], scenario.rules[0], 60, in_colour=in_colour)
        for in_colour in (False, True)
    )
    assert all(len(line) <= 60 for line in plain)
    assert "A star: new." in " ".join(plain)
    assert "A star" not in " ".join(coloured)
    assert " ISR: " in " ".join(plain)
    assert " Epoch file: " in " ".join(plain)


def test_many_records_are_shown_as_runs() -> None:
    assert shortened(["m0", "m1"]) == "m0 m1"
    assert shortened([*(f"m{i}" for i in range(8, 12)), "x", "m12", "m13"]) == "m8..m11 x m12..m13"
