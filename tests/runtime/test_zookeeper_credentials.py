"""What brokers write to a real ZooKeeper under zookeeper.digest.credentials, and what others may read or change."""

import pytest
from kazoo.security import OPEN_ACL_UNSAFE

from minibroker.local_cluster.zookeeper_process import ZooKeeperProcess
from minibroker.runtime.adapters.zookeeper import ZooKeeperCoordination
from minibroker.runtime.ports import CreateOp, NotAuthorized, SetOp

pytestmark = pytest.mark.system


async def opened(zookeeper: ZooKeeperProcess, credentials: str = "") -> ZooKeeperCoordination:
    coordination = ZooKeeperCoordination(zookeeper.servers, 5_000, credentials)
    await coordination.start()
    return coordination


async def test_others_delete_nothing_at_the_root(zookeeper: ZooKeeperProcess) -> None:
    """/controller and /controller_epoch are there, and the root's ACL grants the right to delete them."""
    broker, liar = await opened(zookeeper, "broker:long-password"), await opened(zookeeper)
    try:
        await liar.create("/credentials-open", b"made without")
        await broker.create("/credentials-mine", b"mine")
        assert await broker.protect(["/credentials-open", "/credentials-mine", "/nowhere"]) == ["/credentials-open"]
        await liar.create("/credentials-still-open", b"")
        await liar.delete("/credentials-still-open")
        assert await broker.protect(["/credentials-mine"]) == []
        for refused in (liar.delete("/credentials-mine"), liar.create("/credentials-forged", b"")):
            with pytest.raises(NotAuthorized):
                await refused
        assert await liar.protect(["/credentials-open"]) == [], "without credentials nothing is protected"
    finally:
        for path in ("/credentials-mine", "/credentials-open"):
            await broker.delete(path)
        await broker._call("set_acls /", lambda client: client.set_acls_async("/", OPEN_ACL_UNSAFE), is_write=True)
        await broker.close()
        await liar.close()


async def test_others_read_what_brokers_write_but_no_secret_and_change_nothing(zookeeper: ZooKeeperProcess) -> None:
    broker = await opened(zookeeper, "broker:long-password")
    another = await opened(zookeeper, "broker:long-password")
    tool, liar = await opened(zookeeper), await opened(zookeeper, "broker:guessed")
    try:
        await broker.create("/credentials-plain", b"plain")
        await broker.create("/credentials-secret", b"secret", is_secret=True)
        await broker.multi([CreateOp(path="/credentials-multi", data=b"multi")])
        for each in (tool, liar):
            assert (await each.get("/credentials-plain"))[0] == b"plain"
            assert (await each.get("/credentials-multi"))[0] == b"multi"
            with pytest.raises(NotAuthorized):
                await each.get("/credentials-secret")
            for path in ("/credentials-plain", "/credentials-multi", "/credentials-secret"):
                with pytest.raises(NotAuthorized):
                    await each.set(path, b"forged")
            with pytest.raises(NotAuthorized):
                await each.multi([SetOp(path="/credentials-plain", data=b"forged")])
        assert (await another.get("/credentials-secret"))[0] == b"secret"
        await another.set("/credentials-plain", b"changed")
    finally:
        for path in ("/credentials-plain", "/credentials-secret", "/credentials-multi"):
            await broker.delete(path)
        for each in (broker, another, tool, liar):
            await each.close()
