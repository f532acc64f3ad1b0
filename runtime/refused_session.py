"""When a session that ZooKeeper refuses is given up for a new one. Pure.

ZooKeeper ends a connection without a word where the session has seen younger data than the server has: its data was
wiped, or restored from an older copy. In an ensemble another server may be up to date, so kazoo goes on asking for
ever, and nobody learns what happened. A new session is taken by any server; whoever holds it looks what is there.
"""

REFUSALS_MIN = 5
"""A server that is just starting, or one behind the others, refuses a few times, too."""

WIPED = (
    "ZooKeeper %s ends every connection of this session, as it does when its data is older than what the session has"
    " seen (wiped, or restored from an older copy): asking for a new session"
)


class SessionRefusals:
    """Connections in a row that were taken, and ended instead of answered."""

    def __init__(self) -> None:
        self._count = 0

    def answered(self) -> None:
        """ZooKeeper took the session."""
        self._count = 0

    def refused(self, now: float, session_deadline: float, session_seconds: float) -> bool:
        """One more; whether to give the session up. Not before another session's time has passed after the deadline:
        a server that merely was away keeps it, and with it what hangs on it."""
        self._count += 1
        if self._count < REFUSALS_MIN or now < session_deadline + session_seconds:
            return False
        self._count = 0
        return True
