"""Producer, Consumer and AdminClient for asyncio programs.

Import them from `minibroker`. Layers, each knowing only those below it:

    producer   consumer   admin            what users call
    sender     fetcher    offsets          shells: requests, answers, timers
    accumulator, batches   cursor, records   pure: order and sequences; positions
    cluster                                fresh metadata, which broker to ask
    connections                            one per server, handshake, back-off
    metadata_cache, retry, partitioner, limits, errors   pure
"""
