"""The trace of lines: what ran is told once, and a run stays the same to the last byte."""

import json
import subprocess
import sys

import pytest

from minibroker.simulation.swarm.run import run_seed
from minibroker.swarm_coverage.source_lines import read_sources

TRACED_RUN = """
import json
from minibroker.swarm_coverage.line_trace import LineTrace
trace = LineTrace()
from minibroker.simulation.swarm.run import run_seed
first = run_seed(11).trace_hash
lines = trace.new_lines()
again = run_seed(11).trace_hash
print(json.dumps([first, again, lines, trace.new_lines()]))
"""


def traced_run() -> tuple[str, str, dict[str, list[int]], dict[str, list[int]]]:
    done = subprocess.run([sys.executable, "-c", TRACED_RUN], capture_output=True, timeout=110, check=True)
    first, again, lines, fresh = json.loads(done.stdout)
    return first, again, lines, fresh


@pytest.mark.timeout(120)
def test_traced_run_is_the_same_run_and_tells_each_line_once() -> None:
    first, again, lines, fresh = traced_run()
    assert first == again == run_seed(11).trace_hash
    entered = {
        f"{source.path}:{each.name}"
        for source in read_sources()
        for each in source.functions
        if each.lines & {*lines.get(source.path, ())}
    }
    assert "broker/broker.py:Broker.serve" in entered
    assert "client/default_runtime.py:runtime_or_default" in entered
    assert not any(each.startswith("broker/configuration/config_docs.py") for each in entered)
    assert not any({*fresh.get(path, ())} & {*told} for path, told in lines.items())
