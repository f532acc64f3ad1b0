"""The real clock port: the operating system's clocks."""

import time


class RealClock:
    """Implements `ports.Clock`."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()
