"""Chaos on real clusters: a plan of faults, a load, a history of what clients saw, a verdict, and a report.

Nothing here decides how a broker is killed or a link is cut: that is `minibroker.harness`.
"""
