"""The report as data, page and terminal output."""
