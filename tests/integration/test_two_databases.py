"""Two databases beside one set of internal topics: what one of them has published is not published again."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.world import fresh_name
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.cluster_acts import delete_group

USAGE = 2


@pytest.fixture
def topic(kafka: str) -> str:
    name = fresh_name("orders")
    create_topics(kafka, {name: 1})
    return name


def commit(process: BridgeProcess, topic: str, values: str) -> None:
    for value in values:
        body = {"producer_group": "shop", "messages": [{"topic": topic, "value": value}]}
        prepared = process.post("/v1/transactions", body).json()
        assert process.post(f"/v1/transactions/{prepared['transaction_id']}/commit").status_code == 200


def seen(kafka: str, topic: str) -> str:
    return "".join(sorted((record.value or b"").decode() for record in read_committed(kafka, [topic])))


def with_another_database(bridge: Bridge, name: str) -> Bridge:
    """As a copied config makes one on another machine: SQLite in a folder there."""
    folder = bridge.directory / name
    folder.mkdir()
    return replace(bridge, directory=folder, database_url=f"sqlite:///{folder / 'bridge.db'}")


def refused(bridge: Bridge) -> str:
    """What a settler says that ends by itself."""
    process = bridge.start("api,settler,projector")
    assert wait_until(lambda: process.popen.poll() is not None, name="the end of the process")
    assert process.popen.poll() == USAGE
    process.http.close()
    return process.log.read_text()


def test_settler_with_another_database_publishes_nothing_again(kafka: str, topic: str, tmp_path: Path) -> None:
    """Migrated before anybody settled, so that it believes no record of the other: it ends and says why, whether the
    other one runs or not, and that one goes on undisturbed (D)."""
    bridge = Bridge.create(kafka, tmp_path)
    other = with_another_database(bridge, "other")
    other.run("migrate")
    with bridge.serve() as process:
        commit(process, topic, "abcd")
        assert "database_url" in refused(other)
        commit(process, topic, "e")
    assert "database_url" in refused(other)
    with bridge.serve() as process:
        commit(process, topic, "f")
    assert seen(kafka, topic) == "abcdef"


def test_settler_with_another_database_is_known_without_its_note(kafka: str, topic: str, tmp_path: Path) -> None:
    """Kafka forgets the offsets of a group that had no member for a week, and operators delete idle groups, and with
    them the note of whose database it was: nothing is published again (D), and the right one goes on."""
    bridge = Bridge.create(kafka, tmp_path)
    other = with_another_database(bridge, "other")
    other.run("migrate")
    with bridge.serve() as process:
        commit(process, topic, "abcd")
    assert delete_group(kafka, bridge.group)
    assert "database_url" in refused(other)
    delete_group(kafka, bridge.group)
    with bridge.serve() as process:
        commit(process, topic, "e")
    assert seen(kafka, topic) == "abcde"


def test_new_database_takes_the_topics_from_a_lost_one(kafka: str, topic: str, tmp_path: Path) -> None:
    """As docs/backup.md has it; the lost one, found again, is refused from then on (D)."""
    bridge = Bridge.create(kafka, tmp_path)
    with bridge.serve() as process:
        commit(process, topic, "abcd")
    new = with_another_database(bridge, "new")
    assert "no other database may be used" in new.run("migrate")
    with new.serve() as process:
        commit(process, topic, "efgh")
    assert "database_url" in refused(bridge)
    with new.serve() as process:
        commit(process, topic, "i")
    assert seen(kafka, topic) == "abcdefghi"
