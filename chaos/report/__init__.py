"""What a run leaves behind: report.json, and report.html for people."""
