"""`python -m minibroker.demo`: reads FILE, DEMO_SABOTAGE and DEMO_ENGINE from the environment; returns an exit code."""

if __name__ == "__main__":
    from minibroker.early_interrupts import end_quietly

    end_quietly()

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

import uvloop

from minibroker import doctor_checks
from minibroker.audit.errors import AuditError
from minibroker.client.errors import MinibrokerError
from minibroker.command_line import EXIT_COULD_NOT, EXIT_FINE, EXIT_FOUND_WRONG, EXIT_INTERRUPTED, EXIT_USAGE
from minibroker.demo.input_lines import BadInput, InputLines
from minibroker.demo.ledger import Ledger
from minibroker.demo.output import DemoOutput
from minibroker.demo.sabotage import SABOTAGES
from minibroker.demo.script import DemoFailed, run_demo
from minibroker.demo.verdict import audit_files
from minibroker.early_interrupts import raise_again
from minibroker.local_cluster.cluster_file import ClusterFailed
from minibroker.local_cluster.teardown import TeardownTimedOut
from minibroker.local_cluster.zookeeper_process import PortTaken, ZooKeeperFailed
from minibroker.observation.broker_queries import NoAnswer
from minibroker.step_line import StepLine

EXPECTED = (
    *(ClusterFailed, NoAnswer, MinibrokerError, AuditError, PortTaken, ZooKeeperFailed, DemoFailed, OSError),
    TeardownTimedOut,
)


def main() -> int:
    """Run it; 0 only if all checks hold, 10 if one does not, 1 if it could not run, 130 after Ctrl-C."""
    output = DemoOutput()
    sabotage = os.environ.get("DEMO_SABOTAGE") or None
    if sabotage is not None and sabotage not in SABOTAGES:
        print(f"error: DEMO_SABOTAGE={sabotage} is unknown: choose {', '.join(SABOTAGES)}", file=sys.stderr)
        return EXIT_USAGE
    engine = os.environ.get("DEMO_ENGINE", "spark")
    directory = Path(tempfile.mkdtemp(prefix="minibroker-demo-"))
    try:
        raise_again()
        complaint = doctor_checks.complaint(
            [*doctor_checks.checks_for_cluster(directory, []), *doctor_checks.checks_for_audit(engine)]
        )
        if complaint:
            raise DemoFailed(complaint)
        with StepLine(output.progress) as steps:
            steps.tell("reading the input")
            lines = InputLines.load(os.environ.get("FILE"))
        ledger, acked_file = Ledger(), directory / "acknowledged.tsv"
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_demo(output, directory, lines, sabotage, ledger, acked_file))
        audit_files(output, directory, acked_file, ledger, engine)
    except KeyboardInterrupt:
        print("interrupted" + _remains(directory, "; the data stays in"), file=sys.stderr)
        return EXIT_INTERRUPTED
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        shutil.rmtree(directory, ignore_errors=True)
        return EXIT_USAGE
    except EXPECTED as error:
        output.end_progress()
        output.print_summary(error)
        if remains := _remains(directory, "the data and the processes' logs stay in"):
            print(remains, file=sys.stderr)
        return EXIT_COULD_NOT
    output.print_summary()
    if output.all_held:
        shutil.rmtree(directory, ignore_errors=True)
        return EXIT_FINE
    print(f"the data, the processes' logs and the audit's report stay in {directory}", file=sys.stderr)
    return EXIT_FOUND_WRONG


def _remains(directory: Path, text: str) -> str:
    """The text with the directory; "" if nothing was written yet, so that it is removed."""
    try:
        directory.rmdir()
    except OSError:
        return f"{text} {directory}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
