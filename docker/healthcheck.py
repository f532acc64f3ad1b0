#!/opt/minibroker/bin/python -I
"""Healthy means ready: registered in ZooKeeper, and told of the cluster. The broker says so itself, at /readyz."""

import os
import sys
from http.client import HTTPConnection, HTTPException

_, _, port = os.environ["MINIBROKER_METRICS_LISTENER"].rpartition(":")
connection = HTTPConnection("127.0.0.1", int(port), timeout=4)
try:
    connection.request("GET", "/readyz")
    response = connection.getresponse()
    sys.stdout.write(response.read().decode(errors="replace"))
except (OSError, HTTPException) as error:
    sys.exit(f"the broker does not answer at port {port}: {error}")
sys.exit(response.status != 200)
