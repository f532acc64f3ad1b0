"""The demo's last checks: the audit of the three data directories, joined with the acknowledged records."""

from pathlib import Path

from minibroker.audit.checks.findings import Severity
from minibroker.audit.reports.report import AuditReport, describe
from minibroker.audit.run import run_audit
from minibroker.demo.ledger import Ledger
from minibroker.demo.output import DemoOutput
from minibroker.local_cluster.teardown import Ownership
from minibroker.step_line import StepLine

FINDINGS_SHOWN = 5


def audit_files(output: DemoOutput, directory: Path, acked_file: Path, ledger: Ledger, engine: str) -> None:
    """Run the audit, in this thread: Ctrl-C interrupts the main one only. The checks go into the output."""
    started = output.seconds
    with (
        Ownership(lambda: None),  # SIGTERM acts as Ctrl-C, so that Spark's JVM ends
        StepLine(lambda step: output.progress(f"{engine} audit: {step}")) as steps,
    ):
        report = run_audit([str(directory)], engine, str(acked_file), str(directory / "audit"), progress=steps.tell)
    seconds = output.seconds - started
    output.tell(f"{engine} audit of three data directories in {seconds:.1f} s: {report.summary}")
    _check_report(output, report, ledger)


def _check_report(output: DemoOutput, report: AuditReport, ledger: Ledger) -> None:
    for finding in report.findings[:FINDINGS_SHOWN]:
        output.tell(f"  {finding.severity}: {describe(finding)}")
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    compared = f"{report.statistics.compared_offsets} of {report.statistics.total_offsets} offsets compared"
    kinds = ", ".join(dict.fromkeys(finding.kind for finding in errors))
    detail = f"{compared}, {report.outcome}"
    if errors:
        detail = f"{len(errors)} findings ({kinds}), first {describe(errors[0])}"
    output.check("the audit proves the replicas identical", report.success, detail)
    placed = report.statistics.acked_in_place
    output.check(
        "each acknowledged record is at its offset on every in-sync replica",
        placed == ledger.count,
        f"{placed} of {ledger.count}",
    )
