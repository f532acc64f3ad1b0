"""The audit for spark-submit: `spark-submit audit/submit.py DIR... [--acked FILE] [--output DIR]`.

Master, memory and the like are spark-submit's options. On a cluster every executor must see the same paths, and have
the package installed or get it through `--ship-package` (docs/AUDIT.md).
"""

import argparse
import sys
from pathlib import Path

CANNOT_RUN_EXIT = 1


def _find_package() -> None:
    """In a checkout the package is next to this folder, not installed."""
    try:
        import minibroker  # noqa: F401
    except ImportError:
        own = Path(__file__).resolve()
        sys.path[0] = str(next(parent for parent in own.parents if (parent / "minibroker" / "__init__.py").exists()))


def main(arguments: list[str] | None = None) -> int:
    """Run and return the exit code: 0 consistent, 10 findings or unproven, 1 could not run."""
    parser = argparse.ArgumentParser(prog="submit.py", description="Audit minibroker's replicas on Spark.")
    parser.add_argument("directories", nargs="+", metavar="DIR", help="a cluster's data directory, or log directories")
    acked_help = "list of acknowledged records (`minibroker produce --report`)"
    parser.add_argument("--acked", metavar="FILE", action="append", default=[], help=acked_help)
    parser.add_argument("--output", metavar="DIR", help="write report.json, report.html and findings.parquet there")
    parser.add_argument("--records", action="store_true", help="decode every record, also without --acked")
    parser.add_argument("--zookeeper", metavar="HOST:PORT", help="ask it which replicas should be there")
    parser.add_argument("--allow-unproven", action="store_true", help="exit code 0 if nothing worse than unproven")
    parser.add_argument("--ship-package", action="store_true", help="give minibroker to workers that lack it")
    given = parser.parse_args(arguments)
    if len(given.acked) > 1:
        parser.error(f"--acked takes one list, and was given {len(given.acked)}: audit once with each")
    _find_package()
    try:
        from minibroker.audit.errors import AuditError
        from minibroker.audit.reports.terminal import print_report
        from minibroker.audit.run import run_audit
    except ImportError as error:
        hint = "set PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON to one that has minibroker[spark]"
        print(f"audit could not run: the driver {sys.executable} lacks {error.name}; {hint}", file=sys.stderr)
        return CANNOT_RUN_EXIT

    try:
        report = run_audit(
            given.directories,
            "spark",
            given.acked[0] if given.acked else None,
            given.output,
            records=given.records,
            allow_unproven=given.allow_unproven,
            ship_package=given.ship_package,
            zookeeper=given.zookeeper,
        )
    except AuditError as error:
        print(f"audit could not run: {error}", file=sys.stderr)
        return CANNOT_RUN_EXIT
    print_report(report)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
