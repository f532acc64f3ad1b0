"""Collects the findings of one replica. Pure."""

from minibroker.audit.checks.findings import Finding, Kind, finding
from minibroker.audit.reading.replica import AuditedReplica


class ReplicaReport:
    """Collects the findings of one replica and fills in their common fields."""

    def __init__(self, replica: AuditedReplica) -> None:
        self.replica = replica
        self.findings: list[Finding] = []

    def add(
        self,
        kind: Kind,
        message: str,
        *,
        note: bool = False,
        offset: int | None = None,
        end_offset: int | None = None,
        file: str | None = None,
        position: int | None = None,
    ) -> None:
        facts = self.replica.facts
        self.findings.append(
            finding(
                kind,
                message,
                note=note,
                broker=facts.broker,
                topic=facts.topic,
                partition=facts.partition,
                offset=offset,
                end_offset=end_offset,
                file=file,
                position=position,
            )
        )
