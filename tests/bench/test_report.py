"""Tables, chart and page show the document, with the same rows in each."""

import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec
import pytest

from minibroker.bench.case import ProcessCost
from minibroker.bench.cases.catalogue import CASES
from minibroker.bench.chart import OURS_COLOUR, THEIRS_COLOUR, UNCLEAR_COLOUR, Bar, bars_of, draw, render
from minibroker.bench.goals import OURS
from minibroker.bench.page import BEGIN, END, NoTableMarkers, with_tables
from minibroker.bench.report import SHOWN_BESIDES, cost_rows, failures, figure_words, number, rows_of
from tests.bench.documents import FAILURE, case, document

FASTER = case("produce", [30.0, 32.0, 34.0], [10.0, 10.0, 10.0])
SLOWER = case("wait", [8.0, 8.0, 8.0], [2.0, 2.0, 2.0], figure="p99_ms", unit="ms", more=False)


def test_a_row_shows_both_medians_spreads_and_the_cautious_bound_of_the_ratio() -> None:
    (row,) = rows_of(document(FASTER))
    expected = ("title of produce, MB/s", "32.0", "30.0 to 34.0", "10.0", "10.0 to 10.0", "3.20 x", ">= 3.00", "3")
    assert row.cells() == expected


def test_the_ratio_of_a_latency_has_an_upper_bound() -> None:
    (row,) = rows_of(document(SLOWER))
    assert row.cells()[-3:-1] == ("4.00 x", "<= 4.00")


def test_a_case_of_one_peer_has_no_ratio() -> None:
    (row,) = rows_of(document(case("alone", [1.0], [])))
    assert row.cells()[3:] == ("-", "-", "-", "-", "1")


def test_a_figure_missing_on_kafka_is_not_compared_with_another_one() -> None:
    both = case("partitions-1000", [10.0], [2.0])
    more = {"mb_s": 10.0, "one_partition_mb_s": 12.0}
    rounds = [msgspec.structs.replace(each, figures=more) if each.peer == OURS else each for each in both.rounds]
    _, besides = rows_of(document(msgspec.structs.replace(both, rounds=rounds)))
    assert (besides.ours is not None, besides.theirs, besides.ratio) == (True, None, None)


def test_further_rows_belong_to_existing_cases() -> None:
    assert set(SHOWN_BESIDES) <= {each.name for each in CASES}


@pytest.mark.parametrize(
    ("figure", "words"), [("p50_ms", "p50"), ("p999_ms", "p99.9"), ("getmany_mb_s", "getmany"), ("share", "share")]
)
def test_the_name_of_a_figure_is_shown_without_its_unit(figure: str, words: str) -> None:
    assert figure_words(figure) == words


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.123, "0.12"), (12.34, "12.3"), (123.4, "123"), (578123.0, "578,123")]
)
def test_numbers_have_three_significant_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_costs_are_shown_for_cases_that_have_them() -> None:
    with_costs = case("produce", [], [], figure="mb_s")
    each = case("produce", [12.5], [], figure="cluster_cpu_s_per_gb").rounds[0]
    costs = [ProcessCost("broker-1", 1.0, 60.0)]
    with_costs = msgspec.structs.replace(with_costs, rounds=[msgspec.structs.replace(each, costs=costs)])
    assert cost_rows(document(with_costs, SLOWER)) == [("title of produce", "12.5", "-", "-", "-", "-", "-")]


def test_rounds_that_failed_are_named() -> None:
    failed = msgspec.structs.replace(FASTER, failures=[FAILURE])
    assert failures(document(failed)) == ["produce, round 1 on kafka: 3 of 4 records were acknowledged"]


def test_other_load_on_the_machine_is_reported_first() -> None:
    busy = msgspec.structs.replace(
        FASTER, rounds=[msgspec.structs.replace(each, load_average=17.0) for each in FASTER.rounds]
    )
    assert failures(document(busy))[0].startswith("the machine had other work: its load average was 17")
    assert failures(document(FASTER)) == []


def test_better_is_on_the_right_for_latencies_too() -> None:
    faster, slower = bars_of(document(FASTER, SLOWER))
    assert (faster.times, slower.times) == (3.2, 0.25)
    assert slower.lower <= slower.times <= slower.upper


@pytest.mark.parametrize("cases", [(), (FASTER, SLOWER)], ids=["empty", "two"])
def test_the_chart_is_an_svg_with_a_bar_a_row(cases: tuple[()]) -> None:
    picture = ElementTree.fromstring(render(document(*cases)))
    bars = [each for each in picture.iter() if each.tag.endswith("rect")]
    assert len(bars) == len(cases) + 1  # and the background


def test_the_axis_holds_every_bar_and_its_bounds() -> None:
    """A ratio of 232 was drawn as 64."""
    picture = draw([Bar("far", 231.6, 200, 300), Bar("near", 2, 1.5, 2.5)], "today")
    far, near = (float(width) for width in re.findall(r'width="([\d.]+)" height="13"', picture))
    assert far / near == pytest.approx(math.log(231.6) / math.log(2), rel=0.01)
    assert "232 x" in picture and ">512 x<" in picture


def test_a_ratio_whose_bounds_include_one_shows_no_difference() -> None:
    assert [
        Bar("", times, low, high).colour for times, low, high in ((2, 1.5, 3), (0.5, 0.4, 0.9), (1.1, 0.9, 1.3))
    ] == [
        OURS_COLOUR,
        THEIRS_COLOUR,
        UNCLEAR_COLOUR,
    ]
    assert "one round" in draw([Bar("once", 2, 2, 2)], "today")


def test_titles_are_escaped_in_the_chart() -> None:
    odd = msgspec.structs.replace(FASTER, title="a < b & c")
    assert "a &lt; b &amp; c" in render(document(odd))


def test_the_page_gets_new_tables_between_its_markers() -> None:
    page = f"before\n{BEGIN}old{END}after\n"
    renewed = with_tables(page, document(FASTER))
    assert renewed.startswith(f"before\n{BEGIN}")
    assert renewed.endswith(f"{END}after\n")
    assert "old" not in renewed
    assert "| title of produce, MB/s | 32.0 |" in renewed
    assert with_tables(renewed, document(FASTER)) == renewed


def test_a_page_without_markers_is_rejected() -> None:
    with pytest.raises(NoTableMarkers):
        with_tables("no markers", document())


def test_the_page_of_the_project_has_its_markers() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "PERFORMANCE.md"
    with_tables(page.read_text(), document(FASTER))
