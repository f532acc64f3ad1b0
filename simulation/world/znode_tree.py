"""ZooKeeper's data: nodes, versions, transaction ids, and what each operation does to them.

Owns: the rules of create, set, delete, check and multi as ZooKeeper 3.9 has them, in the order in which it checks them.
Leaves to others: time, the life of sessions, and watchers. A transaction only names the watches that it triggers.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from minibroker.runtime.ports import (
    BadVersion,
    CheckOp,
    CoordinationError,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SetOp,
    Stat,
)
from minibroker.simulation.world.observations import DeletedNode, NodesWritten, WorldObservers

PERSISTENT = 0


class ZNode(msgspec.Struct):
    """One node."""

    data: bytes
    czxid: int
    mzxid: int
    ephemeral_owner: int = PERSISTENT
    version: int = 0
    children: set[str] = msgspec.field(default_factory=set)
    children_created: int = 0
    """Numbers sequence nodes; never falls."""

    def stat(self) -> Stat:
        return Stat(
            version=self.version,
            czxid=self.czxid,
            mzxid=self.mzxid,
            ephemeral_owner=self.ephemeral_owner,
            num_children=len(self.children),
        )


class ZNodeChange(msgspec.Struct, frozen=True):
    """A watch to trigger: of the node's data or existence, or of its list of children."""

    path: str
    children: bool


class ZNodeTree:
    """All nodes, by path."""

    def __init__(self, observers: WorldObservers | None = None) -> None:
        self._observers = observers or WorldObservers()
        self.zxid = 0
        self.nodes: dict[str, ZNode] = {
            "/": ZNode(b"", 0, 0, children={"zookeeper"}),
            "/zookeeper": ZNode(b"", 0, 0),
        }

    def copied(self) -> tuple[int, dict[str, ZNode]]:
        """The newest transaction, and all nodes."""
        return self.zxid, copied_nodes(self.nodes)

    def put_in(self, zxid: int, nodes: Mapping[str, ZNode]) -> None:
        """In place of what there is, as `copied` returned it: it may be put in again."""
        self.zxid = zxid
        self.nodes.clear()  # observers keep this very mapping
        self.nodes.update(copied_nodes(nodes))

    def find(self, path: str) -> ZNode:
        node = self.nodes.get(path)
        if node is None:
            raise NoNode(path)
        return node

    def children(self, path: str) -> list[str]:
        return sorted(self.find(path).children)

    def next_zxid(self) -> int:
        self.zxid += 1
        return self.zxid

    def transact(
        self, operations: Sequence[Operation], session_id: int
    ) -> tuple[list[str | Stat | None], list[ZNodeChange]]:
        """All or nothing, under one transaction id. A failed operation changes nothing and sets the error's index."""
        zxid = self.next_zxid()
        undo: list[Callable[[], None]] = []
        changed: list[ZNodeChange] = []
        results: list[str | Stat | None] = []
        deleted = self._deleted_by(operations)
        for index, operation in enumerate(operations):
            try:
                results.append(self._apply(operation, session_id, zxid, undo, changed))
            except CoordinationError as error:
                for step in reversed(undo):
                    step()
                error.index = index
                raise
        self._observers.notify(NodesWritten(operations, session_id, deleted))
        return results, changed

    def _deleted_by(self, operations: Sequence[Operation]) -> dict[str, DeletedNode]:
        """The existing nodes that these operations delete."""
        paths = [operation.path for operation in operations if type(operation) is DeleteOp]
        found = [(path, self.nodes[path]) for path in paths if path in self.nodes]
        return {path: DeletedNode(node.data, node.czxid, node.ephemeral_owner) for path, node in found}

    def delete_ephemerals(self, session_id: int) -> tuple[list[str], list[ZNodeChange]]:
        """Delete what belongs to a session that ends, in one transaction."""
        zxid = self.next_zxid()
        owned = sorted(path for path, node in self.nodes.items() if node.ephemeral_owner == session_id)
        changed: list[ZNodeChange] = []
        for path in owned:
            self._apply(DeleteOp(path=path), session_id, zxid, [], changed)
        return owned, changed

    def _apply(
        self,
        operation: Operation,
        session_id: int,
        zxid: int,
        undo: list[Callable[[], None]],
        changed: list[ZNodeChange],
    ) -> str | Stat | None:
        match operation:
            case CreateOp():
                return self._create(operation, session_id, zxid, undo, changed)
            case SetOp():
                return self._set(operation, zxid, undo, changed)
            case DeleteOp():
                self._delete(operation, undo, changed)
                return None
            case CheckOp():
                check_version(self.find(operation.path), operation.path, operation.version)
                return None

    def _create(
        self,
        operation: CreateOp,
        session_id: int,
        zxid: int,
        undo: list[Callable[[], None]],
        changed: list[ZNodeChange],
    ) -> str:
        parent_path = parent_of(operation.path)
        parent = self.find(parent_path)
        path = f"{operation.path}{parent.children_created:010d}" if operation.sequence else operation.path
        if path in self.nodes:
            raise NodeExists(path)
        if parent.ephemeral_owner != PERSISTENT:
            raise CoordinationError(f"{path}: ephemeral nodes have no children")
        name = path.rpartition("/")[2]
        self.nodes[path] = ZNode(operation.data, zxid, zxid, session_id if operation.ephemeral else PERSISTENT)
        parent.children.add(name)
        parent.children_created += 1

        def take_back() -> None:
            del self.nodes[path]
            parent.children.discard(name)
            parent.children_created -= 1

        undo.append(take_back)
        changed += [ZNodeChange(path, children=False), ZNodeChange(parent_path, children=True)]
        return path

    def _set(self, operation: SetOp, zxid: int, undo: list[Callable[[], None]], changed: list[ZNodeChange]) -> Stat:
        node = self.find(operation.path)
        check_version(node, operation.path, operation.version)
        before = (node.data, node.version, node.mzxid)
        node.data, node.version, node.mzxid = operation.data, node.version + 1, zxid

        def take_back() -> None:
            node.data, node.version, node.mzxid = before

        undo.append(take_back)
        changed.append(ZNodeChange(operation.path, children=False))
        return node.stat()

    def _delete(self, operation: DeleteOp, undo: list[Callable[[], None]], changed: list[ZNodeChange]) -> None:
        path = operation.path
        node = self.find(path)
        check_version(node, path, operation.version)
        if node.children:
            raise NotEmpty(path)
        parent_path, name = parent_of(path), path.rpartition("/")[2]
        parent = self.nodes[parent_path]
        del self.nodes[path]
        parent.children.discard(name)

        def take_back() -> None:
            self.nodes[path] = node
            parent.children.add(name)

        undo.append(take_back)
        changed += [
            ZNodeChange(path, children=False),
            ZNodeChange(path, children=True),
            ZNodeChange(parent_path, children=True),
        ]


def copied_nodes(nodes: Mapping[str, ZNode]) -> dict[str, ZNode]:
    return {path: msgspec.structs.replace(node, children=set(node.children)) for path, node in nodes.items()}


def parent_of(path: str) -> str:
    assert path.startswith("/"), f"{path!r} is not absolute"
    assert len(path) > 1, "the root cannot be created or deleted"
    return path.rpartition("/")[0] or "/"


def check_version(node: ZNode, path: str, version: int) -> None:
    if version not in (-1, node.version):
        raise BadVersion(f"{path}: version {version} asked, {node.version} found")


def describe(operations: Sequence[Operation]) -> str:
    """One word for each, for the trace."""
    return ",".join(f"{type(operation).__name__[:-2].lower()}:{operation.path}" for operation in operations)
