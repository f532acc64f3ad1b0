"""The metrics of docs/OPERATIONS.md, from broker/metrics: `python -m tests.docs.metrics_table` renews them there."""

from __future__ import annotations

import sys
from pathlib import Path

from minibroker.broker.monitoring.metrics import BrokerCounters, BrokerGauges
from minibroker.broker.monitoring.prometheus_page import PREFIX, metrics_of

PAGE = Path(__file__).parents[2] / "docs" / "OPERATIONS.md"
BEGIN = "<!-- made by python -m tests.docs.metrics_table: begin -->"
END = "<!-- made by python -m tests.docs.metrics_table: end -->"


def renewed(page: str) -> str:
    """The page with its generated part as the code has it now."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{made()}{END}{rest.split(END)[1]}"


def made() -> str:
    rows = [(metric.name, metric.doc) for metric in metrics_of(BrokerGauges).values()]
    rows += [(f"{metric.name}_total", metric.doc) for metric in metrics_of(BrokerCounters).values()]
    rows += [
        ("network_requests_total{api}", "Requests, by API."),
        ("network_request_seconds_total{api}", "Time of the event loop spent on them, waiting not included."),
    ]
    lines = [f"| `{PREFIX}{name}` | {doc} |" for name, doc in sorted(rows)]
    return "\n".join(["| metric | meaning |\n|---|---|", *lines, ""])


def main() -> None:
    PAGE.write_text(renewed(PAGE.read_text()))
    sys.stdout.write(f"{PAGE} is up to date\n")


if __name__ == "__main__":
    main()
