"""bridge.broker.jars: fetched once, checked, whole or not at all. A local server plays Maven Central."""

import gc
import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bridge.broker.jars import (
    FetchProgress,
    JarSet,
    MavenRepository,
    PinnedJar,
    default_jar_folder,
    fetch_jars,
    kafka_jars,
    parse_pins,
)
from bridge.broker.ports import CacheUnusable, JarCorrupt, JarsUnavailable, choose_free_port

CONTENTS = {"org/one/alpha/1.0/alpha-1.0.jar": b"first jar", "org/two/beta/2.1/beta-2.1.jar": b"second jar" * 1000}


def pin(repository_path: str, content: bytes) -> PinnedJar:
    return PinnedJar(repository_path, hashlib.sha256(content).hexdigest())


PINS = tuple(pin(path, content) for path, content in CONTENTS.items())


class Served:
    """A Maven repository over HTTP that notes which jars were asked for."""

    def __init__(self, root: Path) -> None:
        asked = self.asked = list[str]()

        class Answers(SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                if self.path.endswith(".jar"):
                    asked.append(self.path.rpartition("/")[2])

        self.root = root
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Answers, directory=str(root)))
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def put(self, repository_path: str, content: bytes) -> None:
        path = self.root / repository_path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    repository = Served(tmp_path / "repository")
    for path, content in CONTENTS.items():
        repository.put(path, content)
    thread = threading.Thread(target=repository.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield repository
    repository.server.shutdown()
    repository.server.server_close()
    thread.join()


def jars_of(served: Served) -> JarSet:
    return JarSet(PINS, MavenRepository(served.url, local=served.root / "absent"))


def contents_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.jar")}


WANTED = {"alpha-1.0.jar": b"first jar", "beta-2.1.jar": b"second jar" * 1000}


def test_pinned_jars_are_fetched_once(served: Served, tmp_path: Path) -> None:
    """The second start asks nobody, and reports nothing."""
    reports: list[FetchProgress] = []
    folder = fetch_jars(tmp_path / "cache" / "jars", reports.append, jars_of(served))
    assert contents_of(folder) == WANTED
    assert reports == [FetchProgress(1, 2, "alpha-1.0.jar"), FetchProgress(2, 2, "beta-2.1.jar")]
    fetch_jars(folder, reports.append, jars_of(served))
    assert (len(reports), len(served.asked)) == (2, 2)


def test_interrupted_fetch_goes_on_where_it_stopped(served: Served, tmp_path: Path) -> None:
    """A kill after the first jar leaves no cache, and the next start fetches only what is missing."""

    class Interrupted(Exception):
        """Stands for the kill."""

    def stop_after_first(_: FetchProgress) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        fetch_jars(tmp_path / "jars", stop_after_first, jars_of(served))
    assert not (tmp_path / "jars").exists()
    assert contents_of(fetch_jars(tmp_path / "jars", jars=jars_of(served))) == WANTED
    assert served.asked == ["alpha-1.0.jar", "beta-2.1.jar"]


def test_broken_remains_of_a_fetch_are_not_trusted(served: Served, tmp_path: Path) -> None:
    """Half a file from a kill in mid-download is fetched anew."""
    remains = tmp_path / "jars.partial"
    (remains / "scratch" / "org").mkdir(parents=True)
    (remains / "beta-2.1.jar").write_bytes(b"second j")
    assert contents_of(fetch_jars(tmp_path / "jars", jars=jars_of(served))) == WANTED
    assert not remains.exists()


@pytest.mark.parametrize("damage", ["changed", "missing", "added"])
def test_damaged_cache_is_repaired(served: Served, tmp_path: Path, damage: str) -> None:
    """Only exactly the pinned files are ever run; what is still good is not fetched again."""
    folder = fetch_jars(tmp_path / "jars", jars=jars_of(served))
    jar = folder / ("stranger.jar" if damage == "added" else "alpha-1.0.jar")
    jar.unlink() if damage == "missing" else jar.write_bytes(b"tampered!")
    assert contents_of(fetch_jars(folder, jars=jars_of(served))) == WANTED
    assert served.asked.count("beta-2.1.jar") == 1


def test_file_that_differs_from_its_pin_is_refused(served: Served, tmp_path: Path) -> None:
    """A server that hands out something else does not get it run."""
    served.put(PINS[1].repository_path, b"evil")
    with pytest.raises(JarCorrupt, match=r"beta-2\.1\.jar"):
        fetch_jars(tmp_path / "jars", jars=jars_of(served))
    assert not (tmp_path / "jars").exists()


def test_missing_network_has_its_own_error(tmp_path: Path) -> None:
    """The user is told to look at the network, not at a stack trace."""
    nobody = MavenRepository(f"http://127.0.0.1:{choose_free_port()}", local=tmp_path)
    with pytest.raises(JarsUnavailable) as caught:
        fetch_jars(tmp_path / "jars", jars=JarSet(PINS, nobody))
    assert "network" in caught.value.remedy


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_jar_that_the_repository_lacks_has_the_same_error(served: Served, tmp_path: Path) -> None:
    """A mirror may be incomplete."""
    gone = JarSet((pin("org/no/gamma/1/gamma-1.jar", b""),), MavenRepository(served.url, local=tmp_path))
    with pytest.raises(JarsUnavailable, match="gamma"):
        fetch_jars(tmp_path / "jars", jars=gone)
    gc.collect()  # jgo leaves the refused answer open; its warning belongs here, not to a later test


def test_jars_of_mavens_own_cache_need_no_network(served: Served, tmp_path: Path) -> None:
    """A machine that has them, even without a network, is ready; a wrong one there is passed over."""
    (served.root / PINS[1].repository_path).write_bytes(b"wrong in the local cache")
    local = MavenRepository(f"http://127.0.0.1:{choose_free_port()}", local=served.root)
    assert contents_of(fetch_jars(tmp_path / "jars", jars=JarSet(PINS[:1], local))) == {"alpha-1.0.jar": b"first jar"}
    with pytest.raises(JarsUnavailable):
        fetch_jars(tmp_path / "more", jars=JarSet(PINS, local))


def test_folder_with_other_files_is_not_emptied(served: Served, tmp_path: Path) -> None:
    """A folder named by mistake keeps what it holds."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    with pytest.raises(CacheUnusable, match=r"thesis\.tex"):
        fetch_jars(home, jars=jars_of(served))
    assert (home / "thesis.tex").read_text() == "years of work"


def test_unwritable_cache_has_its_own_error(served: Served, tmp_path: Path) -> None:
    """A file where the folder should be stands for every way of not being able to write."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheUnusable) as caught:
        fetch_jars(tmp_path / "file" / "jars", jars=jars_of(served))
    assert "XDG_CACHE_HOME" in caught.value.remedy


def test_two_processes_at_once_fetch_each_jar_once(served: Served, tmp_path: Path) -> None:
    """The second waits for the first and then finds everything there."""
    folders: list[Path] = []
    fetch = partial(fetch_jars, tmp_path / "jars", jars=jars_of(served))
    threads = [threading.Thread(target=lambda: folders.append(fetch())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 4
    assert sorted(served.asked) == ["alpha-1.0.jar", "beta-2.1.jar"]


FETCH_AND_STALL = """
import sys
from pathlib import Path
from bridge.broker.jars import JarSet, PinnedJar, fetch_jars
from bridge.broker.jars import MavenRepository
folder, url, path, digest, absent = sys.argv[1:]
def stall(_):
    print("first jar is there", flush=True)
    sys.stdin.read()
fetch_jars(Path(folder), stall, JarSet((PinnedJar(path, digest),), MavenRepository(url, Path(absent))))
"""


def test_killed_fetch_leaves_no_lock(served: Served, tmp_path: Path) -> None:
    """After SIGKILL in the middle the next process goes on at once."""
    arguments = [tmp_path / "jars", served.url, PINS[0].repository_path, PINS[0].sha256, tmp_path / "absent"]
    with subprocess.Popen(
        [sys.executable, "-c", FETCH_AND_STALL, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"first jar is there\n"
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    assert contents_of(fetch_jars(tmp_path / "jars", jars=jars_of(served))) == WANTED


def test_shipped_pins_are_kafka_and_its_logger() -> None:
    """46 jars, every digest a SHA-256, every path that of a Maven repository."""
    pins = kafka_jars().pins
    assert len(pins) == len({pin.name for pin in pins}) == 46
    assert {"kafka_2.13-4.3.1.jar", "slf4j-simple-1.7.36.jar"} < {pin.name for pin in pins}
    for jar in pins:
        *_, artifact, version, name = jar.repository_path.split("/")
        assert name == f"{artifact}-{version}.jar"
        assert len(bytes.fromhex(jar.sha256)) == 32


def test_pins_are_in_the_format_of_sha256sum() -> None:
    """So that anybody can check them with that tool."""
    assert parse_pins("00ff  org/a/b/1/b-1.jar\n") == (PinnedJar("org/a/b/1/b-1.jar", "00ff"),)


def test_cache_folder_follows_the_desktop_standard() -> None:
    """XDG_CACHE_HOME, else the user's .cache."""
    assert default_jar_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/outbox-bridge/kafka-4.3.1")
    assert default_jar_folder({}) == Path.home() / ".cache" / "outbox-bridge" / "kafka-4.3.1"
