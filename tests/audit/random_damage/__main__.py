"""`python -m tests.audit.random_damage --seeds 300`: what the audit says of random damages, by kind."""

import argparse
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path

from minibroker.audit.report import AuditOutcome
from tests.audit.random_damage.one_seed import Told, play

OUTCOMES = (AuditOutcome.INCONSISTENT, AuditOutcome.UNPROVEN, AuditOutcome.CONSISTENT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="a line for each seed")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    told = []
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        with tempfile.TemporaryDirectory() as root:
            one = play(seed, Path(root))
        told.append(one)
        if not one.is_fine or arguments.verbose:
            print(line(one), flush=True)
    print(table(told))
    failed = [one.seed for one in told if not one.is_fine]
    print(f"{len(told)} seeds, {len(failed)} failed: {failed}")
    return 1 if failed else 0


def line(one: Told) -> str:
    clean = f"CLEAN DATA ACCUSED: {one.accused}" if one.accused else f"clean data {one.clean}"
    harm = "harm" if one.is_harm else "no harm"
    return f"seed {one.seed} ({one.end}): {clean}; {one.damage}, {harm}: {one.outcome}; broker {one.first}"


def table(told: list[Told]) -> str:
    counted = Counter((one.damage, one.is_harm, one.outcome) for one in told)
    rows = [f"{'damage':32} {'':8} {'inconsistent':>12} {'unproven':>9} {'consistent':>10}"]
    for damage, is_harm in sorted({(damage, is_harm) for damage, is_harm, _ in counted}):
        harm = "harm" if is_harm else "no harm"
        numbers = [
            counted[damage, is_harm, each]
            for each in (AuditOutcome.INCONSISTENT, AuditOutcome.UNPROVEN, AuditOutcome.CONSISTENT)
        ]
        rows.append(f"{damage:32} {harm:8} {numbers[0]:12} {numbers[1]:9} {numbers[2]:10}")
    clean = Counter(one.clean for one in told)
    rows.append("before the damage: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(clean.items())))
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
