"""The commands of README.md and docs/ do what the pages say."""
