"""`make demo`: the whole story in three minutes, with real processes, and a verdict.

ZooKeeper and three brokers start; every line of Python's standard library is written; the leader of lines-0 is killed
on the way; everything is read back and compared byte for byte; another leader loses power; the Spark audit judges the
files of all three brokers. Exit code 0 only if all of it held. DEMO_SABOTAGE plants a lie that the demo must find.
"""
