"""docs/scenarios/: a page for each scenario, generated from its text and its printed runs.

`python -m minibroker.scenarios.pages`, run in the project's folder, rewrites them; a test fails while they are stale.
"""

import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from minibroker.scenarios.catalogue import NAMES, all_scenarios, find_scenario
from minibroker.scenarios.staging.played_variant import PlayedVariant, play_variant
from minibroker.scenarios.staging.scenario import Scenario, TruncationRule, Variant
from minibroker.scenarios.staging.slides import plain_lines

FOLDER = Path("docs/scenarios")
INDEX = "README"
WIDTH = 120

INTRODUCTION = """\
# Scenarios of replication

`minibroker scenario run NAME` plays a scenario: the real broker, controller and client code runs in one process and in
virtual time, with control over every message. After each step, a table shows one row for each replica. At the end, the
audit checks the disks. A scenario that departs from its script ends with exit code 10; `--step` waits for a key after
each step, `--json` prints one object per line.

Terms: LEO is the log end offset, the offset of the next record. HW is the high watermark, the first offset that a
consumer may not read. Remote LEO is a follower's LEO as the leader knows it. The ISR is the set of in-sync replicas.
The epoch file has a line `epoch start` for each leader epoch that a log knows.

`--truncation` chooses how a follower cuts its log when it begins to follow: `leader-epoch`, or `high-watermark`,
which is what Kafka did before 0.11. In brokers this is `replica.truncation.rule`; with `high-watermark` they warn at
their start, because it loses acknowledged records.

`--live` plays the same script on a real ZooKeeper and real broker processes on this machine. The column `live` shows
the scenarios whose steps can be forced by kills, pauses and message holds. A live run needs Java and takes 10 to 25 s.

How to add a scenario: [QUESTIONS.md](../QUESTIONS.md#how-do-i-add-). These pages are written by `python -m
minibroker.scenarios.pages`.
"""


@cache
def played_variant(scenario_name: str, variant_name: str, rule: TruncationRule) -> PlayedVariant:
    """Each variant is played once per process: every run is the same."""
    return play_variant(
        next(variant for variant in find_scenario(scenario_name).variants if variant.name == variant_name), rule
    )


def page_names() -> list[str]:
    """One for each scenario, and the index."""
    return [*NAMES, INDEX]


def page_text(name: str) -> str:
    """Plays the scenario."""
    return index(all_scenarios()) if name == INDEX else page(find_scenario(name))


def index(scenarios: list[Scenario]) -> str:
    rows = [
        f"| [{scenario.name}]({scenario.name}.md) | {scenario.title}"
        f" | {'both' if len(scenario.rules) > 1 else 'leader-epoch'}"
        f" | {'yes' if any(variant.live for variant in scenario.variants) else ''} |"
        for scenario in scenarios
    ]
    return "\n".join([INTRODUCTION, "| scenario | what it shows | truncation | live |", "|---|---|---|---|", *rows, ""])


def page(scenario: Scenario) -> str:
    return "\n".join([*_description(scenario), *_runs(scenario)]).rstrip() + "\n"


def _description(scenario: Scenario) -> Iterator[str]:
    content = scenario.page
    yield f"# {scenario.title}"
    yield ""
    yield from _paragraph(content.summary)
    for name, text in (
        ("The rule", content.rule),
        ("Source", content.source),
        ("Older texts", content.old_texts),
        ("Limits", content.limits),
    ):
        if text:
            yield from _paragraph(f"**{name}.** {text}")


def _paragraph(text: str) -> list[str]:
    return [*textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False), ""]


def _runs(scenario: Scenario) -> Iterator[str]:
    for rule in scenario.rules:
        option = f" --truncation {rule.value}" if len(scenario.rules) > 1 else ""
        yield f"## `minibroker scenario run {scenario.name}{option}`"
        yield ""
        for variant in scenario.variants:
            yield from _run(scenario, variant, rule)


def _run(scenario: Scenario, variant: Variant, rule: TruncationRule) -> Iterator[str]:
    yield "```text"
    yield from plain_lines(scenario, variant, rule, played_variant(scenario.name, variant.name, rule))
    yield "```"
    yield ""


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in page_names():
        (FOLDER / f"{name}.md").write_text(page_text(name))


if __name__ == "__main__":
    main()
