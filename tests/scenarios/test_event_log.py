"""The events of real brokers, told as those of simulated ones."""

import json
from pathlib import Path

from minibroker.protocol.events.broker_events import ProcessStalled
from minibroker.protocol.events.cluster_events import as_json_fields
from minibroker.protocol.events.replica_events import IsrChanged, ReplicaTruncated
from minibroker.scenarios.live.event_log import BrokerEventLog

TRUNCATED = ReplicaTruncated(topic="lines", partition=0, end_before=9, end_after=7, leader_epoch=2, reason="why")
ISR = IsrChanged(topic="lines", partition=0, before=[1, 2, 3], after=[1], leader_epoch=2, partition_epoch=5)


def line(*events: object) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def test_events_that_matter_are_told_once(tmp_path: Path) -> None:
    path = tmp_path / "broker-1.log"
    log = BrokerEventLog(path)
    assert list(log.new_phrases()) == []
    path.write_text(line(as_json_fields(TRUNCATED), as_json_fields(ProcessStalled(stalled_ms=9)), {"event": "log"}))
    assert list(log.new_phrases()) == ["cuts its log from 9 to 7: why"]
    with path.open("a") as file:
        file.write("Traceback (most recent call last):\n" + line(as_json_fields(ISR)) + '{"half of a li')
    assert list(log.new_phrases()) == ["ISR A B C -> A"]
    with path.open("a") as file:
        file.write('ne": 1, "event": "log"}\n')
    assert list(log.new_phrases()) == []
