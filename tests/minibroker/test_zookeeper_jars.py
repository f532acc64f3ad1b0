"""ZooKeeper's jars: fetched from a Maven repository or by mvn, checked, kept in a cache folder, found again.

The repository is a server of this test that serves PySpark's jars: they are byte for byte Maven's.
"""

import hashlib
import http.server
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.commands.zookeeper import install
from minibroker.local_cluster import zookeeper_jars as jars
from minibroker.local_cluster.zookeeper_jars import JARS, CannotFetch, Jar, MissingZooKeeper, install_jars

CONTENT = b"the content of a jar"
SMALL = tuple(
    Jar("org.example", name, "1.2", hashlib.sha256(CONTENT + name.encode()).hexdigest()) for name in ("zk", "log")
)
SERVED = {f"/maven2/org/example/{name}/1.2/{name}-1.2.jar": CONTENT + name.encode() for name in ("zk", "log")}


class Repository(http.server.BaseHTTPRequestHandler):
    files: dict[str, bytes]

    raw: bytes = b""
    """Sent instead of an answer, if it is not empty."""

    def do_GET(self) -> None:
        if self.raw:
            self.wfile.write(self.raw)
            return
        content = self.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of a Maven repository with two small jars, which are the pinned ones; an empty cache folder."""
    monkeypatch.setattr(jars, "JARS", SMALL)
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(Repository, "files", dict(SERVED), raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Repository) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/maven2"
        server.shutdown()
        thread.join()


def test_jars_come_from_the_mirror_and_are_then_found(mirror: str, tmp_path: Path) -> None:
    told: list[str] = []
    directory = install_jars(f"{mirror}/", told.append)
    assert directory == tmp_path / "cache" / "zookeeper-1.2"
    assert jars.zookeeper_jars() == [str(directory / "zk-1.2.jar"), str(directory / "log-1.2.jar")]
    assert told == ["fetching zk-1.2.jar", "fetching log-1.2.jar"]


def test_a_mirror_may_be_a_folder(mirror: str, tmp_path: Path) -> None:
    for path, content in SERVED.items():
        file = tmp_path / path.removeprefix("/maven2/")
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
    assert install_jars(tmp_path.as_uri(), lambda _: None).is_dir()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"no http at all\r\n\r\n", r"\(no http at all\): name a Maven"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n", "100 headers"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(200), "more than 100 bytes for one jar"),
    ],
)
def test_a_mirror_that_answers_nonsense_is_named(
    mirror: str, monkeypatch: pytest.MonkeyPatch, answer: bytes, reason: str
) -> None:
    monkeypatch.setattr(jars, "JAR_BYTES_MAX", 100)
    monkeypatch.setattr(Repository, "raw", answer)
    with pytest.raises(CannotFetch, match=reason):
        install_jars(mirror, lambda _: None)


def test_a_mirror_that_takes_too_long_is_named(mirror: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "FETCH_TIMEOUT_S", -1.0)
    with pytest.raises(CannotFetch, match="has not sent all of it"):
        install_jars(mirror, lambda _: None)


def test_what_is_there_and_right_is_not_fetched_again(mirror: str) -> None:
    """Each call ran mvn, for up to a quarter of a minute."""
    directory = install_jars(mirror, lambda _: None)
    assert install_jars("http://127.0.0.1:1", pytest.fail) == directory


def test_a_cache_folder_that_cannot_be_made_names_the_variable(
    mirror: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It advised to check the path."""
    (tmp_path / "file").touch()
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(CannotFetch, match=r"cache cannot be written \(.*name another folder by MINIBROKER_CACHE_DIR"):
        install_jars(mirror, lambda _: None)


def test_a_second_installation_replaces_a_damaged_one(mirror: str) -> None:
    directory = install_jars(mirror, lambda _: None)
    (directory / "zk-1.2.jar").write_bytes(b"damaged later")
    install_jars(mirror, lambda _: None)
    assert (directory / "zk-1.2.jar").read_bytes() == CONTENT + b"zk"


def test_a_wrong_checksum_installs_nothing(mirror: str, tmp_path: Path) -> None:
    Repository.files["/maven2/org/example/log/1.2/log-1.2.jar"] = b"foreign"
    with pytest.raises(CannotFetch, match=r"log-1.2.jar has the SHA-256 .* nothing was installed"):
        install_jars(mirror, lambda _: None)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_missing_jar_is_named_with_its_address(mirror: str) -> None:
    del Repository.files["/maven2/org/example/log/1.2/log-1.2.jar"]
    with pytest.raises(CannotFetch, match=r"/maven2/org/example/log/1.2/log-1.2.jar cannot be .* 404"):
        install_jars(mirror, lambda _: None)


@pytest.mark.parametrize(
    "address", ["ftp://example.org", "example.org/maven2", "http://127.0.0.1:1", "http://127.0.0.1:x"]
)
def test_a_mirror_that_cannot_be_used_is_named(mirror: str, address: str) -> None:
    with pytest.raises(CannotFetch, match="mirror"):
        install_jars(address, lambda _: None)


def test_the_command_says_where_the_jars_are(mirror: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(install, ["--mirror", mirror])
    assert done.stdout == f"ZooKeeper 1.2 is in {tmp_path / 'cache' / 'zookeeper-1.2'}; its checksums are right\n"


def test_without_a_mirror_maven_fetches(mirror: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    writes = "\n".join(f"printf %s '{CONTENT.decode()}{name}' > $folder/{name}-1.2.jar" for name in ("zk", "log"))
    maven.write_text(f'#!/bin/sh\nfor word; do folder="${{word#-DoutputDirectory=}}"; done\n{writes}\n')
    maven.chmod(maven.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{maven.parent}:/bin:/usr/bin")
    shutil.rmtree(install_jars(None, lambda _: None))
    maven.write_text("#!/bin/sh\necho '[ERROR] no network'; exit 1\n")
    with pytest.raises(CannotFetch, match=r"mvn cannot fetch the jars \(\[ERROR\] no network\).*--mirror"):
        install_jars(None, lambda _: None)


def test_without_maven_and_mirror_they_come_from_maven_central(
    mirror: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(jars, "MAVEN_CENTRAL", mirror)
    shutil.rmtree(install_jars(None, lambda _: None))
    monkeypatch.setattr(jars, "MAVEN_CENTRAL", "http://127.0.0.1:1/maven2")
    with pytest.raises(CannotFetch, match=r"name a Maven repository that this machine reaches, by --mirror URL"):
        install_jars(None, lambda _: None)


def test_without_jars_the_error_names_all_ways(mirror: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "find_spec", lambda name: None)
    with pytest.raises(MissingZooKeeper) as caught:
        jars.zookeeper_jars()
    for way in ("minibroker zookeeper install", "--zookeeper HOST:PORT", "docs/DOCKER.md", "minibroker[spark]"):
        assert way in str(caught.value)


def test_pysparks_jars_are_the_pinned_ones_and_are_found_without_importing_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path))
    found = [Path(path) for path in jars.zookeeper_jars()]
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in found] == [jar.sha256 for jar in JARS]
    code = (
        "import sys; from minibroker.local_cluster.zookeeper_jars import zookeeper_jars; zookeeper_jars(); "
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
