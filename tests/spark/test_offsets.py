"""What may change in Kafka between two runs, and what cannot be read on from: told, never passed over."""

import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql import SparkSession

from bridge.core.topics import InternalTopics, with_prefix
from spark.errors import BadUsage, Indeterminate
from spark.options import Options
from spark.read import offsets
from spark.read.envelope import QueuePlace
from spark.read.offsets import take_window
from spark.read.sources import KafkaAccess, land_kafka
from spark.read.window import WINDOW_FILE, Window, encode_window
from spark.reconcile import _choose_window
from spark.report.files import Run, RunIndex
from tests.support.bridge_process import create_topics, wait_until
from tests.support.broker import BrokerFactory
from tests.support.kafka_cluster import KafkaCluster, running_cluster

LIST_OFFSETS = 2


class Cluster:
    """A bridge's empty topics, and a real one with five records that a run has read."""

    def __init__(self, kafka: str) -> None:
        self.options = {"bootstrap.servers": kafka}
        self.admin = AdminClient(self.options)
        self.kafka = kafka
        prefix = f"offsets-{secrets.token_hex(4)}."
        self.internal: InternalTopics = with_prefix(prefix, 1)
        self.orders = f"{prefix}orders"
        create_topics(kafka, {self.internal.half: 1, self.internal.op: 1, self.internal.parked: 1, self.orders: 1})
        self.put(5)
        self.last = self.take()

    def take(self, *others: str, last: Window | None = None) -> Window:
        return take_window(self.options, self.internal, [self.orders, *others], last)

    def put(self, count: int, part: int = 0) -> None:
        producer = Producer(self.options)
        for _ in range(count):
            producer.produce(self.orders, b"", partition=part)
        assert producer.flush(30) == 0

    def count_partitions(self) -> int:
        return len(self.admin.list_topics(self.orders, timeout=10).topics[self.orders].partitions)

    def delete(self) -> None:
        self.admin.delete_topics([self.orders])[self.orders].result(30)
        wait_until(lambda: self.orders not in self.admin.list_topics(timeout=10).topics, name="deletion")


@pytest.fixture
def cluster(kafka: str) -> Iterator[Cluster]:
    """Its topics are gone afterwards, but for the real one if the test has deleted it."""
    made = Cluster(kafka)
    yield made
    made.admin.delete_topics([made.internal.half, made.internal.op, made.internal.parked])


def test_partitions_and_topics_that_were_added_are_read_from_their_beginning(cluster: Cluster) -> None:
    """Whatever was read is read on."""
    cluster.admin.create_partitions([NewPartitions(cluster.orders, 2)])[cluster.orders].result(30)
    fresh = f"{cluster.orders}-fresh"
    create_topics(cluster.kafka, {fresh: 1})
    wait_until(lambda: cluster.count_partitions() == 2, name="two partitions")
    cluster.put(3, part=1)
    cluster.put(1)
    extents = cluster.take(fresh, last=cluster.last).extents
    read = [extents[QueuePlace(*place)] for place in ((cluster.orders, 0), (cluster.orders, 1), (fresh, 0))]
    assert [(extent.start, extent.end) for extent in read] == [(5, 6), (0, 3), (0, 0)]


def test_records_that_retention_removed_are_told(cluster: Cluster) -> None:
    """Only if the last run has not read them."""
    cluster.put(3)
    for end, reason in ((5, None), (7, "begins at 7: records since the last window were removed")):
        place = TopicPartition(cluster.orders, 0, end)
        cluster.admin.delete_records([place])[place].result(30)
        if reason is None:
            assert cluster.take(last=cluster.last).extents[QueuePlace(cluster.orders, 0)].start == 5
        else:
            with pytest.raises(BadUsage, match=reason):
                cluster.take(last=cluster.last)


@pytest.mark.parametrize("records", [2, 9])
def test_topic_that_was_made_anew_is_told(cluster: Cluster, records: int) -> None:
    """With more records than before, too: what lies below the last run's end was never read."""
    cluster.delete()
    with pytest.raises(BadUsage, match=f"topic {cluster.orders} does not exist"):
        cluster.take(last=cluster.last)
    create_topics(cluster.kafka, {cluster.orders: 1})
    cluster.put(records)
    with pytest.raises(BadUsage, match="was made anew"):
        cluster.take(last=cluster.last)


def test_topic_that_was_made_anew_is_known_in_a_new_beginning(cluster: Cluster, tmp_path: Path) -> None:
    """As a run with `--since-last` advises: what its owner has deleted is no loss of the bridge. Where the last run has
    lost its window nobody knows, and the new beginning goes on."""
    ledger = RunIndex.open(tmp_path)
    number, folder = ledger.make_folder()
    (folder / WINDOW_FILE).write_text(encode_window(cluster.last))
    ledger.add(Run(number, number, "then", 0, 0, 0, 0))
    cluster.delete()
    create_topics(cluster.kafka, {cluster.orders: 1})
    cluster.put(9)

    def choose() -> Window:
        options = Options(tmp_path, cluster.internal, cluster.options, topics=[cluster.orders])
        return _choose_window(options, RunIndex.open(tmp_path), None)[0]

    window = choose()
    told = {place.topic: (extent.anew_ms, extent.is_whole) for place, extent in window.extents.items()}
    internal = dict.fromkeys((cluster.internal.half, cluster.internal.op, cluster.internal.parked), (0, True))
    assert told == {**internal, cluster.orders: (window.taken_ms, False)}
    (folder / WINDOW_FILE).unlink()
    assert not any(extent.anew_ms for extent in choose().extents.values())


def test_topic_that_has_lost_its_newest_records_is_not_called_another(cluster: Cluster) -> None:
    """As after an unclean election: whoever looks for the one who made it anew looks in vain."""
    place = QueuePlace(cluster.orders, 0)
    read = replace(cluster.last.extents[place], end=9)
    last = replace(cluster.last, extents={**cluster.last.extents, place: read})
    with pytest.raises(BadUsage, match="ends at 5, the last run has read up to 9: its newest records are lost"):
        cluster.take(last=last)


def test_log_that_was_cut_and_has_grown_since_is_not_read_on(
    spark: SparkSession, broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    """What was read and judged before is gone, and in no later window; however far the log has grown, and if nothing
    came at first. A broker that was only started again has lost nothing."""
    broker = broker_factory()
    cluster, kept = Cluster(broker.bootstrap), tmp_path / "kept"
    log = broker.output_file.parent / "log" / f"{cluster.orders}-0"
    broker.stop()
    shutil.copytree(log, kept)
    broker.start()
    cluster.put(4)
    last = cluster.take(last=cluster.last)
    land_kafka(spark, last, KafkaAccess(cluster.options), tmp_path / "restarted")
    broker.stop()
    shutil.rmtree(log)
    kept.rename(log)
    broker.start()
    cluster.put(4)
    quiet = cluster.take(last=last)
    land_kafka(spark, quiet, KafkaAccess(cluster.options), tmp_path / "quiet")
    cluster.put(8)
    with pytest.raises(BadUsage, match=f"{cluster.orders}-0 was cut before 9, where the last run has read up to"):
        land_kafka(spark, cluster.take(last=quiet), KafkaAccess(cluster.options), tmp_path / "cut")


def test_window_is_the_same_however_much_is_asked_for_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers of thousands of topics are asked in portions."""
    monkeypatch.setattr(offsets, "_PORTION", 1)
    again = cluster.take()
    assert (again.extents, again.topic_ids) == (cluster.last.extents, cluster.last.topic_ids)


def test_topic_that_is_made_while_ends_are_noted_is_read(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Op messages that are read may name records of it."""
    fresh, ask = f"{cluster.orders}-meanwhile", offsets._read_policies

    def make_topic_and_ask(admin: AdminClient, topics: Iterable[str]) -> dict[str, tuple[str, str]]:
        if fresh not in admin.list_topics(timeout=10).topics:
            create_topics(cluster.kafka, {fresh: 1})
        return ask(admin, topics)

    monkeypatch.setattr(offsets, "_read_policies", make_topic_and_ask)
    assert QueuePlace(fresh, 0) in take_window(cluster.options, cluster.internal, []).extents
    cluster.admin.delete_topics([fresh])[fresh].result(30)


def test_topic_that_is_not_read_on_is_told(cluster: Cluster) -> None:
    """Named no more, or gone where no topic is named: what is committed to it would seem lost."""
    other = f"{cluster.orders}-other"
    create_topics(cluster.kafka, {other: 1})
    both = cluster.take(other)
    with pytest.raises(BadUsage, match=f"the last run read topic {other}, this one does not"):
        cluster.take(last=both)
    cluster.delete()
    with pytest.raises(BadUsage, match=f"{cluster.orders}-0, which the last run read, does not exist any more"):
        take_window(cluster.options, cluster.internal, [], cluster.last)


# --- partitions whose broker does not answer ---


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[KafkaCluster]:
    """Three, of which the third alone has the topic `gone`."""
    with running_cluster(tmp_path, 3) as running:
        admin = AdminClient({"bootstrap.servers": running.direct})
        internal = with_prefix("", 1)
        for name, broker in ((internal.half, 1), (internal.op, 1), (internal.parked, 2), ("gone", 3)):
            admin.create_topics([NewTopic(name, 1, replica_assignment=[[broker]])])[name].result(30)
        wait_until(partial(is_known, running.direct), name="topics")
        yield running


def is_known(kafka: str) -> bool:
    """A broker learns of a topic a moment after it was made."""
    try:
        look(kafka)
    except (BadUsage, Indeterminate):
        return False
    return True


def look(kafka: str) -> Window:
    return take_window({"bootstrap.servers": kafka}, with_prefix("", 1), ["gone"])


def test_partition_whose_only_broker_is_gone_is_told_and_not_asked(brokers: KafkaCluster) -> None:
    """The question for its offsets could end the process without a word."""
    brokers.nodes[2].broker.kill()
    admin = AdminClient({"bootstrap.servers": brokers.direct})
    wait_until(lambda: admin.list_topics(timeout=10).topics["gone"].partitions[0].leader < 0, name="no leader")
    with pytest.raises(Indeterminate, match="gone-0 has no leader"):
        look(brokers.direct)


def test_question_that_nobody_answers_is_no_offset(brokers: KafkaCluster) -> None:
    """The client tells it as a success: the partition was taken for empty, and what is in it for missing."""
    gate = brokers.nodes[2].proxy.hold(LIST_OFFSETS, client="outbox-bridge-report", is_reply=True)
    with pytest.raises(Indeterminate, match="no answer to a question for the offsets of gone-0"):
        look(brokers.proxied)
    gate.cut()
    assert look(brokers.proxied).extents
