"""Consumers with an inbox on a real Kafka: killed, joined by others, and begun again from the first offset."""

import random
import secrets
import subprocess
import sys
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from tests.support.bridge_process import create_topics, wait_until
from tests.support.inbox_process import effects, metadata
from tests.support.source_tree import ROOT
from tests.support.user_database import UserDatabase

COUNT = 300


class Consumers:
    """Processes of one database."""

    def __init__(self, kafka: str, topic: str, url: str) -> None:
        self._arguments = [kafka, topic]
        self._url = url
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, group: str) -> None:
        module = [sys.executable, "-m", "tests.support.inbox_process"]
        command = [*module, *self._arguments, group, self._url, "50"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        self.running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        self.running.remove(process)
        process.kill()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def topic(kafka: str) -> str:
    """With a message for each number."""
    name = f"inbox-{secrets.token_hex(4)}"
    create_topics(kafka, {name: 4})
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(COUNT):
        producer.produce(name, value=str(number).encode(), key=str(number).encode())
    assert producer.flush(30) == 0
    return name


@pytest.fixture
def engine(user_database: UserDatabase) -> Iterator[sa.Engine]:
    made = user_database.engine()
    metadata.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def consumers(kafka: str, topic: str, user_database: UserDatabase) -> Iterator[Consumers]:
    made = Consumers(kafka, topic, user_database.url)
    yield made
    for process in list(made.running):
        made.kill(process)


def written(engine: sa.Engine) -> list[int]:
    with engine.connect() as conn:
        return sorted(int(value or "") for value in conn.scalars(sa.select(effects.c.value)))


def test_each_message_acts_once_whoever_dies(consumers: Consumers, engine: sa.Engine, topic: str) -> None:
    """Killed after its database commit, a consumer's messages go to another; a second group reads all of it again."""
    first, second = f"{topic}-1", f"{topic}-2"
    chance = random.Random(7)
    consumers.start(first)
    for round_ in range(3):
        consumers.start(first)  # partitions move
        least = (round_ + 1) * COUNT // 6
        wait_until(lambda least=least: len(written(engine)) >= least, 60, "some effects")
        consumers.kill(chance.choice(consumers.running))
    consumers.start(second)
    wait_until(lambda: len(written(engine)) >= COUNT, 90, "all effects")
    assert written(engine) == list(range(COUNT))
