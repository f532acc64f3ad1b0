"""The seeds of the swarm that no earlier commit had, and what to type to run them again."""

from minibroker.code_version import code_digest, commit_of, fresh_seed
from minibroker.swarm_runs import RUNS_TO_SEE_ALL

COVERING = (49, 58)
"""Fixed seeds, besides those of simulation/seeds.txt: they draw the kinds of faults that none of those has. A kind left
to the seeds of a commit is missing in one commit out of twenty, and the swarm test fails."""
FRESH = RUNS_TO_SEE_ALL // 2


def fresh_seeds() -> tuple[range, str]:
    """Those of this commit, and a sentence on them. Without git, or in an archive without a commit, they follow
    from the sources, so that the same sources run the same seeds."""
    commit = commit_of()
    first = fresh_seed(commit or code_digest())
    whose = f"commit {commit[:12]}" if commit else "the digest of the sources, because git knows no commit here"
    seeds = range(first, first + FRESH)
    again = f"minibroker simulate --seeds {seeds[0]}-{seeds[-1]}"
    return seeds, f"fresh seeds: {seeds[0]} to {seeds[-1]}, from {whose}; again: {again}"
