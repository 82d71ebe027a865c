"""Consumers with an inbox on a real Kafka: killed, joined by others, and begun again from the first offset."""

import os
import random
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from tests.support.bridge_process import create_topics, wait_until
from tests.support.inbox_process import effects, metadata
from tests.support.process_pool import Child, shared_pool
from tests.support.user_database import UserDatabase

COUNT = 300


class Consumers:
    """Processes of one database."""

    def __init__(self, kafka: str, topic: str, url: str, folder: Path) -> None:
        self._arguments = [kafka, topic]
        self._url = url
        self._folder = folder
        self.running: list[Child] = []

    def start(self, group: str) -> None:
        command = ["tests.support.inbox_process", *self._arguments, group, self._url, "50"]
        log = self._folder / f"{secrets.token_hex(4)}.log"
        self.running.append(shared_pool().start(command, os.environ, self._folder, log))
        wait_until(lambda: b"ready\n" in log.read_bytes(), name="readiness")

    def kill(self, process: Child) -> None:
        self.running.remove(process)
        process.kill()
        process.wait(30)


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
def consumers(kafka: str, topic: str, user_database: UserDatabase, tmp_path: Path) -> Iterator[Consumers]:
    made = Consumers(kafka, topic, user_database.url, tmp_path)
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
