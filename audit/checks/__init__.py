"""The checks of the audit: facts go in, findings come out. Pure."""
