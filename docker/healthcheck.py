#!/opt/minibroker/bin/python
"""Healthy means registered: this broker answers on its own inner listener, and the cluster it tells of holds it."""

import asyncio
import os
import sys

from minibroker.asking import Asker, NoAnswer


async def main() -> str | None:
    broker_id = int(os.environ["MINIBROKER_BROKER_ID"])
    server = f"127.0.0.1:{os.environ.get('MINIBROKER_HEALTH_PORT', '19092')}"
    async with Asker("healthcheck") as asker:
        try:
            cluster = await asker.metadata(server, topics=[], timeout_s=4)
        except NoAnswer as error:
            return str(error)
    known = sorted(broker.node_id for broker in cluster.brokers)
    return None if broker_id in known else f"broker {broker_id} is not registered; the cluster has {known}"


sys.exit(asyncio.run(main()))
