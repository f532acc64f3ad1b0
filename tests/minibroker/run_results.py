"""Results of runs of the swarm that never took place."""

from minibroker.swarm_runs import RunResult


def run_result(
    seed: int = 1,
    *findings: str,
    seen: dict[str, int] | None = None,
    injected: dict[str, int] | None = None,
) -> RunResult:
    """A run that counts."""
    return RunResult(
        seed=seed,
        findings=[*findings],
        missing=[],
        losses=0,
        trace_hash="",
        acknowledged=200,
        read=200,
        virtual_seconds=1.0,
        real_seconds=1.0,
        deliveries=1,
        events=1,
        seen=seen or {},
        injected=injected or {},
    )
