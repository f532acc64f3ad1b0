"""`make demo`: all promises in about half a minute, with real processes, and a verdict.

ZooKeeper and three brokers start; every line of Python's standard library is written; the leader of lines-0 is killed
meanwhile; everything is read back and compared byte for byte; another leader loses power; the Spark audit compares the
files of all three brokers. Exit code 0 only if all checks hold. DEMO_SABOTAGE plants an error that the demo must find.
"""
