"""The profile of one hot path: what one request costs one process, and where.

Owns: the numbers, and their derivation from windows, samples and counted calls. Pure.
"""

import msgspec

from minibroker.bench.profile.cpu import CpuWindow
from minibroker.bench.profile.stacks import Stack, samples_of, shares_by_function, shares_by_layer
from minibroker.bench.profile.system_calls import SystemCall

SHARE_MIN = 0.005
"""Less than half a per cent is left out of the tables."""


class MeasuredWindow(msgspec.Struct, frozen=True):
    """A period under load."""

    seconds: float
    requests: float
    """Of the kind that the path serves."""
    megabytes: float
    cpu: CpuWindow

    @property
    def us_per_request(self) -> float:
        return self.cpu.total / self.requests * 1e6


class LayerCost(msgspec.Struct, frozen=True):
    """One row: a layer or function, and its cost."""

    where: str
    us: float
    """Per request, without the functions of this project that it called."""
    share: float
    total_us: float
    """Per request, with everything that it called."""


class CallCost(msgspec.Struct, frozen=True):
    """One system call, per request."""

    name: str
    calls: float
    us: float
    """From entry to exit."""
    us_each: float
    waits: bool
    """The time is mostly waiting for something to do, and not a cost."""


class HotPath(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `make profile` for one path."""

    name: str
    request: str
    """What one request is: 'produce request of 131 kB', 'fetch'."""
    requests_per_s: float
    mb_per_s: float
    cpu_s_per_gb: float
    busy: float
    """The share of one core that the process used, undisturbed."""
    us_per_request: float
    """CPU time, undisturbed by any profiler."""
    kernel_us_per_request: float
    samples: int
    sampler_cost: float
    """CPU time per request while it was sampled, as a multiple of the undisturbed time."""
    tracer_cost: float | None
    """The same while its system calls were counted."""
    layers: list[LayerCost]
    functions: list[LayerCost]
    system_calls: list[CallCost]


def hot_path(
    name: str,
    request: str,
    plain: MeasuredWindow,
    sampled: MeasuredWindow,
    stacks: list[Stack],
    traced: MeasuredWindow | None,
    calls: list[SystemCall],
) -> HotPath:
    """Shares come from the samples, microseconds from the CPU time of the undisturbed window."""
    whole = plain.us_per_request

    def costs(shares: list[LayerCost]) -> list[LayerCost]:
        return [cost for cost in shares if max(cost.share, cost.total_us / whole if whole else 0.0) >= SHARE_MIN]

    return HotPath(
        name=name,
        request=request,
        requests_per_s=plain.requests / plain.seconds,
        mb_per_s=plain.megabytes / plain.seconds,
        cpu_s_per_gb=plain.cpu.total / plain.megabytes * 1000 if plain.megabytes else 0.0,
        busy=plain.cpu.total / plain.seconds,
        us_per_request=whole,
        kernel_us_per_request=plain.cpu.kernel / plain.requests * 1e6,
        samples=samples_of(stacks),
        sampler_cost=sampled.us_per_request / whole,
        tracer_cost=None if traced is None else traced.us_per_request / whole,
        layers=costs([LayerCost(s.name, s.itself * whole, s.itself, s.total * whole) for s in shares_by_layer(stacks)]),
        functions=costs(
            [LayerCost(s.name, s.itself * whole, s.itself, s.total * whole) for s in shares_by_function(stacks)]
        ),
        system_calls=[] if traced is None else [_call_cost(call, traced.requests) for call in calls],
    )


def _call_cost(call: SystemCall, requests: float) -> CallCost:
    each = call.seconds / call.calls * 1e6 if call.calls else 0.0
    return CallCost(call.name, call.calls / requests, call.seconds / requests * 1e6, each, call.waits)
