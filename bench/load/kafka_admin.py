"""Requests to a Kafka cluster on stdin, answers on stdout, one JSON object per line: runs in the Python of its clients.

python -m minibroker.bench.load.kafka_admin admin '{"bootstrap_servers": "127.0.0.1:9092"}'
"""

import json
import sys
import time
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

ANSWER_S = 240.0
"""A thousand partitions take a busy machine more than a minute."""
METADATA_S = 5.0
POLL_S = 0.1
REPLICATION_FACTOR = 3


class CannotAnswer(Exception):
    """The request cannot be answered now; the message gives the reason."""


class KafkaAdmin:
    """The possible requests: each method is one request, with its parameters as keyword arguments."""

    def __init__(self, bootstrap_servers: str) -> None:
        patience_ms = round(ANSWER_S * 1000)
        settings = {"bootstrap.servers": bootstrap_servers, "log_level": 0, "socket.timeout.ms": patience_ms}
        self._client = AdminClient(settings)

    def make_topic(self, topic: str, partitions: int, settings: dict[str, str]) -> dict[str, Any]:
        wanted = NewTopic(topic, partitions, REPLICATION_FACTOR, config=settings)
        made = self._client.create_topics([wanted], operation_timeout=ANSWER_S, request_timeout=ANSWER_S)
        made[topic].result(ANSWER_S)
        deadline = time.monotonic() + ANSWER_S
        while not self._is_ready(topic, partitions):
            if time.monotonic() > deadline:
                raise CannotAnswer(f"topic {topic} is not ready after {ANSWER_S:g} s")
            time.sleep(POLL_S)
        return {}

    def _is_ready(self, topic: str, partitions: int) -> bool:
        try:
            found = self._metadata().topics.get(topic)
        except KafkaException:  # no answer in time: repeated
            found = None
        if found is None:
            return False
        ready = [p for p in found.partitions.values() if p.leader > 0 and len(p.isrs) == REPLICATION_FACTOR]
        return len(ready) == partitions

    def delete_topic(self, topic: str) -> dict[str, Any]:
        gone = self._client.delete_topics([topic], operation_timeout=ANSWER_S, request_timeout=ANSWER_S)
        gone[topic].result(ANSWER_S)
        deadline = time.monotonic() + ANSWER_S
        while topic in self._metadata().topics:
            if time.monotonic() > deadline:
                raise CannotAnswer(f"topic {topic} is still there after {ANSWER_S:g} s")
            time.sleep(POLL_S)
        return {}

    def leader(self, topic: str, partition: int) -> dict[str, Any]:
        found = self._metadata().topics.get(topic)
        if found is None or partition not in found.partitions or found.partitions[partition].leader < 1:
            raise CannotAnswer(f"{topic}-{partition} has no leader")
        return {"broker": found.partitions[partition].leader}

    def controller(self) -> dict[str, Any]:
        return {"broker": self._metadata().controller_id}

    def wait_in_sync(self, brokers: int, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while True:
            problem = self._problem(brokers)
            if problem is None:
                return {}
            if time.monotonic() > deadline:
                raise CannotAnswer(f"after {timeout_s:g} s {problem}")
            time.sleep(POLL_S)

    def _problem(self, brokers: int) -> str | None:
        try:
            metadata = self._metadata()
        except KafkaException as error:
            return f"no broker answers: {error}"
        if len(metadata.brokers) < brokers or metadata.controller_id < 1:
            return f"{len(metadata.brokers)} of {brokers} brokers are registered"
        for name, topic in metadata.topics.items():
            for number, partition in topic.partitions.items():
                if partition.leader < 1 or len(partition.isrs) < len(partition.replicas):
                    return f"{name}-{number} has leader {partition.leader} and ISR {sorted(partition.isrs)}"
        return None

    def _metadata(self) -> ClusterMetadata:
        return self._client.list_topics(timeout=METADATA_S)


def main() -> None:
    admin = KafkaAdmin(json.loads(sys.argv[2])["bootstrap_servers"])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(admin, request.pop("what"))(**request)
        except (KafkaException, CannotAnswer, TimeoutError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
