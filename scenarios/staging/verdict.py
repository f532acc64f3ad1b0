"""The audit's verdict on the disks at the end of a variant.

Owns: the list of acknowledged records and the last known ISR in the audit's own formats, and running the audit over log
directories. It is `minibroker audit`, unchanged: the check is independent of the scenario.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from minibroker.audit.checks.findings import Severity
from minibroker.audit.run import LOCAL, run_audit
from minibroker.protocol.files.acked_list import AckedListWriter
from minibroker.protocol.files.cluster_state import CLUSTER_STATE
from minibroker.protocol.znodes import PartitionState
from minibroker.scenarios.staging.scenario import TOPIC

ACKNOWLEDGED = "acknowledged.tsv"
_CHECKSUM = re.compile(" with CRC [0-9a-f]{8}")
"""Of a batch, timestamp included: it says nothing to the reader of a scenario."""


class AuditVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The audit's result."""

    outcome: str
    findings: tuple[str, ...]
    """Kinds of the errors, each once."""
    sentences: tuple[str, ...]
    """The errors in the audit's words."""


def write_facts(directory: Path, acknowledged: Sequence[tuple[int, int]], state: PartitionState) -> None:
    """Write what the audit needs besides the logs: the acknowledged records, and the ISR at the end.

    `acknowledged`: (offset, checksum of the whole record). The audit would call an empty list unproven, so there is no
    list in scenarios without acknowledgements.
    """
    if acknowledged:
        with (directory / ACKNOWLEDGED).open("wb") as file:
            promised = AckedListWriter(file.write, {})
            promised.add(TOPIC, 0, sorted(acknowledged))
            promised.finish()
    last = {"leader_epoch": state.leader_epoch, "isr": state.isr, "leader": None if state.leader < 0 else state.leader}
    (directory / CLUSTER_STATE).write_text(json.dumps({"partitions": {f"{TOPIC}-0": last}}))


def audit_disks(directory: Path, engine: str = LOCAL) -> AuditVerdict:
    """Audit the brokers' files below this directory."""
    acknowledged = directory / ACKNOWLEDGED
    report = run_audit([str(directory)], engine=engine, acked=str(acknowledged) if acknowledged.exists() else None)
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    return AuditVerdict(
        outcome=report.outcome.value,
        findings=tuple(sorted({finding.kind.value for finding in errors})),
        sentences=tuple(_CHECKSUM.sub("", finding.message.replace(f"{directory}/", "")) for finding in errors),
    )
