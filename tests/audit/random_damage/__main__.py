"""`python -m tests.audit.random_damage --seeds 300`: the audit's results on random damages, by kind."""

import argparse
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path

from minibroker.audit.reports.report import AuditOutcome
from tests.audit.random_damage.one_seed import SeedResult, play

OUTCOMES = (AuditOutcome.INCONSISTENT, AuditOutcome.UNPROVEN, AuditOutcome.CONSISTENT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="a line for each seed")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    results = []
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        with tempfile.TemporaryDirectory() as root:
            result = play(seed, Path(root))
        results.append(result)
        if not result.is_fine or arguments.verbose:
            print(line(result), flush=True)
    print(table(results))
    failed = [result.seed for result in results if not result.is_fine]
    print(f"{len(results)} seeds, {len(failed)} failed: {failed}")
    return 1 if failed else 0


def line(result: SeedResult) -> str:
    clean = f"FALSE ERROR ON CLEAN DATA: {result.false_error}" if result.false_error else f"clean data {result.clean}"
    harm = "harm" if result.is_harm else "no harm"
    return (
        f"seed {result.seed} ({result.end}): {clean}; {result.damage}, {harm}: {result.outcome}; broker {result.first}"
    )


def table(results: list[SeedResult]) -> str:
    counted = Counter((result.damage, result.is_harm, result.outcome) for result in results)
    rows = [f"{'damage':32} {'':8} {'inconsistent':>12} {'unproven':>9} {'consistent':>10}"]
    for damage, is_harm in sorted({(damage, is_harm) for damage, is_harm, _ in counted}):
        harm = "harm" if is_harm else "no harm"
        numbers = [
            counted[damage, is_harm, each]
            for each in (AuditOutcome.INCONSISTENT, AuditOutcome.UNPROVEN, AuditOutcome.CONSISTENT)
        ]
        rows.append(f"{damage:32} {harm:8} {numbers[0]:12} {numbers[1]:9} {numbers[2]:10}")
    clean = Counter(result.clean for result in results)
    rows.append("before the damage: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(clean.items())))
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
