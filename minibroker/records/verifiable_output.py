"""One JSON event per line: Kafka's format for verifiable-producer and verifiable-consumer.

Owns: `timestamp` (ms) and `name` in front of each event's own fields, and flushing each line, because a program that
reads these events acts on them while the tool still runs.
"""

import json
import sys
import time
from typing import Any


def print_event(name: str, **fields: Any) -> None:
    event = {"timestamp": round(time.time() * 1000), "name": name} | fields
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()
