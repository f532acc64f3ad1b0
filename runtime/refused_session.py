"""When a session that ZooKeeper refuses is abandoned for a new one. Pure.

ZooKeeper closes a connection without an error if the session has seen newer data than the server has: the server's data
was wiped, or restored from an older copy. In an ensemble another server may be up to date, so kazoo retries for ever
and reports nothing. Any server accepts a new session, and its owner then reads what is there.
"""

REFUSALS_MIN = 5
"""A server that is just starting, or one that lags behind the others, also refuses a few times."""

WIPED = (
    "ZooKeeper %s ends every connection of this session, as it does when its data is older than what the session has"
    " seen (wiped, or restored from an older copy): asking for a new session"
)


class SessionRefusals:
    """Consecutive connections that ZooKeeper accepted and then closed instead of answering."""

    def __init__(self) -> None:
        self._count = 0

    def answered(self) -> None:
        """ZooKeeper accepted the session."""
        self._count = 0

    def refused(self, now: float, session_deadline: float, session_seconds: float) -> bool:
        """One more refusal; returns whether to abandon the session. Not before another session timeout has passed after
        the deadline: a server that was only unreachable keeps the session and its ephemeral nodes."""
        self._count += 1
        if self._count < REFUSALS_MIN or now < session_deadline + session_seconds:
            return False
        self._count = 0
        return True
