"""The catalogue of events: each is reported by some code, has a sentence, and survives JSON."""

import ast
from pathlib import Path

import msgspec
import pytest

from minibroker.protocol.events.broker_events import SessionChanged
from minibroker.protocol.events.cluster_events import EVENTS, as_json, parse_json_line
from minibroker.protocol.events.controller_events import OfflineReplicasReported
from minibroker.protocol.events.event_base import INFO, WARNING, ClusterEvent

ROOT = Path(__file__).parents[2]
REPORTERS = ("broker", "controller", "runtime")


def reported() -> set[str]:
    """Names that the code of brokers and controllers uses: an import alone is no use."""
    trees = [ast.parse(path.read_text()) for folder in REPORTERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}


def test_each_event_of_the_catalogue_is_reported_by_some_code() -> None:
    assert {kind.__name__ for kind in EVENTS.values()} - reported() == set()


def sample(kind: type[ClusterEvent]) -> ClusterEvent:
    values = {int: 1, str: "x", float: 1.0, bool: True}
    fields = {field.name: values.get(field.type) for field in msgspec.structs.fields(kind)}
    lists = {name: [1] for name in fields if name in ("isr", "before", "after", "brokers", "settings")}
    return kind(**{**fields, **lists})


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_each_sentence_uses_fields_that_the_event_has(name: str) -> None:
    assert sample(EVENTS[name]).text()


def test_the_level_of_some_events_follows_from_their_fields() -> None:
    assert (SessionChanged(state="expired").level, SessionChanged(state="new-session").level) == (WARNING, INFO)
    offline, well = (OfflineReplicasReported(broker=2, replicas=number) for number in (3, 0))
    assert (offline.level, offline.text()) == (WARNING, "broker 2 has 3 offline replicas")
    assert (well.level, well.text()) == (INFO, "broker 2 is well")


@pytest.mark.parametrize("front", ["", "broker-1  | "])
def test_a_line_of_the_json_log_is_read_also_behind_a_containers_name(front: str) -> None:
    fields = parse_json_line(front + as_json(SessionChanged(state="expired")))
    assert fields is not None
    assert (fields["event"], fields["state"]) == ("session_changed", "expired")


@pytest.mark.parametrize(
    "line",
    [
        *("", "Traceback (most recent call last):", '"event"', '["event"]', "event", "null"),  # no object
        *("{", '{"event": ', "{'event': 1}", '{"event": 1} more', '{"a":' * 100_000),  # no JSON
        *("{}", '{"at_ms": 1}', '{"text": "event"}', '["event", {"a": 1}'),  # another object
    ],
    ids=lambda line: line[:20],
)
def test_a_line_that_is_no_event_is_none(line: str) -> None:
    assert parse_json_line(line) is None
