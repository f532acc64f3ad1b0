"""The one exception of the audit."""


class AuditError(Exception):
    """The audit could not run (exit code 1). The message names the cause and the remedy."""
