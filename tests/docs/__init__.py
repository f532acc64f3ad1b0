"""The commands and tables of README.md and docs/ agree with the code."""
