"""The one exception of the audit."""


class AuditError(Exception):
    """The audit could not run (exit code 1). The message says what is in the way and what to do."""
