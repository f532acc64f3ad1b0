"""docs/scenarios/: a page for each story, written from the story itself and its printed runs.

`python -m minibroker.scenarios.pages` writes them anew, in the project's folder; a test says when that is due.
"""

import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from minibroker.scenarios.catalogue import NAMES, all_stories, story
from minibroker.scenarios.telling.performance import Performance, perform
from minibroker.scenarios.telling.slides import plain_lines
from minibroker.scenarios.telling.story import Act, Story, TruncationRule

FOLDER = Path("docs/scenarios")
INDEX = "README"
WIDTH = 120

INTRODUCTION = """\
# Stories of replication

Each is one run of `minibroker scenario run NAME`: the real broker, controller and client code, in one process and
in virtual time, with control over every message. After each step stands a table with a row for each replica; at the
end the audit judges the disks. A story that goes another way than it is told ends with exit code 10; `--step` waits
for a key after each step, `--json` prints one object a line.

Words: LEO is the log end offset, the offset of the next record. HW is the high watermark, the first offset that a
consumer may not read. Remote LEO is what the leader knows of a follower's LEO. The ISR are the in-sync replicas.
The epoch file has a line `epoch start` for each leader epoch that a log knows.

`--truncation` chooses how a follower cuts its log when it begins to follow: `leader-epoch`, or `high-watermark`,
which is what Kafka did before 0.11. Brokers have it as `replica.truncation.rule`, and warn at their start: it loses
acknowledged records.

`--live` plays the same script on a real ZooKeeper and real broker processes on this machine, where kills, pauses and
holds in the network between them can force the steps: the column says which stories. It needs Java, and 10 to 25 s.
"""


@cache
def performance(story_name: str, act_name: str, rule: TruncationRule) -> Performance:
    """Each is played once in a process: it is the same every time."""
    return perform(next(act for act in story(story_name).acts if act.name == act_name), rule)


def page_names() -> list[str]:
    """One for each story, and the index."""
    return [*NAMES, INDEX]


def page_text(name: str) -> str:
    """Plays the story."""
    return index(all_stories()) if name == INDEX else page(story(name))


def index(stories: list[Story]) -> str:
    rows = [
        f"| [{told.name}]({told.name}.md) | {told.title} | {'both' if len(told.rules) > 1 else 'leader-epoch'}"
        f" | {'yes' if any(act.live for act in told.acts) else ''} |"
        for told in stories
    ]
    return "\n".join([INTRODUCTION, "| story | what it tells | truncation | live |", "|---|---|---|---|", *rows, ""])


def page(told: Story) -> str:
    return "\n".join([*_words(told), *_runs(told)]).rstrip() + "\n"


def _words(told: Story) -> Iterator[str]:
    said = told.page
    yield f"# {told.title}"
    yield ""
    yield from _paragraph(said.story)
    for name, text in (
        ("The rule", said.rule),
        ("Source", said.source),
        ("Older texts", said.old_texts),
        ("Limits", said.limits),
    ):
        if text:
            yield from _paragraph(f"**{name}.** {text}")


def _paragraph(text: str) -> list[str]:
    return [*textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False), ""]


def _runs(told: Story) -> Iterator[str]:
    for rule in told.rules:
        option = f" --truncation {rule.value}" if len(told.rules) > 1 else ""
        yield f"## `minibroker scenario run {told.name}{option}`"
        yield ""
        for act in told.acts:
            yield from _run(told, act, rule)


def _run(told: Story, act: Act, rule: TruncationRule) -> Iterator[str]:
    yield "```text"
    yield from plain_lines(told, act, rule, performance(told.name, act.name, rule))
    yield "```"
    yield ""


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in page_names():
        (FOLDER / f"{name}.md").write_text(page_text(name))


if __name__ == "__main__":
    main()
