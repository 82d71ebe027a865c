"""What to read, in numbers, noted once: nothing a run does later moves them.

Upstream first: the real, op and parked topics are looked at, then the journal, then they once more. So everything
below the first look was caused by journal records that are read, and whatever the journal decided had time to get
below the second. All are last stable offsets: what no committed reader can see yet belongs to the next window.
"""

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]

from bridge.core.topics import InternalTopics, is_reserved_topic
from spark.errors import BadUsage, Indeterminate
from spark.read.envelope import OffsetRange, QueuePlace
from spark.read.window import ANEW, CUT, Window

_TIMEOUT_S = 10.0
_ANSWER_S = _TIMEOUT_S + 5  # the client ends its requests itself; this is for a client that does not
_PORTION = 500  # topics, or partitions
_MOVING = frozenset(  # what a broker says of a partition that has just been made or moved; soon over
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)

_Thing = TypeVar("_Thing")


def take_window(
    kafka: Mapping[str, Any], internal: InternalTopics, wanted: Iterable[str], last: Window | None = None
) -> Window:
    """The window from the end of the `last` one (from the beginning, for what it does not name) to the present ends.

    `kafka`: librdkafka's options. `wanted`: real topics; none: every topic of the cluster that is not internal.
    Raises BadUsage, Indeterminate.
    """
    patience_ends = time.monotonic() + _TIMEOUT_S
    with _reached(kafka) as admin:
        while True:
            try:
                return _take(admin, internal, sorted(set(wanted)), last)
            except KafkaException as error:
                if error.args[0].code() not in _MOVING or time.monotonic() > patience_ends:
                    raise
                time.sleep(0.2)


def look_for_topics(kafka: Mapping[str, Any], names: Iterable[str]) -> None:
    """Soon reports a broker or a topic that is not there. Raises BadUsage, Indeterminate."""
    with _reached(kafka) as admin:
        _check_there(names, admin.list_topics(timeout=_TIMEOUT_S).topics)


def check_topics(kafka: Mapping[str, Any], window: Window) -> None:
    """Raises Indeterminate where a topic is not the one that the window speaks of, or Kafka cannot be asked."""
    with _reached(kafka) as admin:
        there = window.topic_ids.keys() & admin.list_topics(timeout=_TIMEOUT_S).topics.keys()
        topic_ids = _read_ids(admin, there) if there else {}
    for topic, known in sorted(window.topic_ids.items()):
        if topic_ids.get(topic) != known:
            reason = f"topic {topic} was deleted, or made anew, since its ends were noted"
            raise Indeterminate(reason, "What was read is not judged; run it again.")


@contextmanager
def _reached(kafka: Mapping[str, Any]) -> Iterator[AdminClient]:
    """Kafka's errors as Indeterminate, in one line."""
    timeout_ms = int(_TIMEOUT_S * 1_000)
    try:
        yield AdminClient(
            {**kafka, "client.id": "outbox-bridge-report", "log_level": 2, "socket.timeout.ms": timeout_ms}
        )
    except (KafkaException, TimeoutError) as error:
        reason = error.args[0].str() if error.args and hasattr(error.args[0], "str") else str(error) or "no answer"
        raise Indeterminate(
            f"Kafka cannot be read now: {reason}", "Is it running? `outbox-bridge doctor` looks."
        ) from None


def _take(admin: AdminClient, internal: InternalTopics, wanted: list[str], last: Window | None) -> Window:
    places = _find_places(admin, internal, wanted)
    topic_ids = _read_ids(admin, {place.topic for place in places})
    since = {} if last is None else last.extents
    if last is not None:
        _check_known(last, places, wanted, topic_ids)
    journal = [place for place in places if place.topic == internal.half]
    others = [place for place in places if place.topic != internal.half]
    seen = _offsets(admin, others, OffsetSpec.latest)
    journal_ends = _offsets(admin, journal, OffsetSpec.latest)
    taken_ms = time.time_ns() // 1_000_000
    ends = {**_offsets(admin, others, OffsetSpec.latest), **journal_ends}
    starts = _offsets(admin, places, OffsetSpec.earliest)
    policies = _read_policies(admin, {place.topic for place in places})
    if set(_find_places(admin, internal, wanted)) - set(places):
        return _take(admin, internal, wanted, last)  # what was published meanwhile may be in one of the others
    extents = {}
    for place in places:
        first, (end, epoch), known = starts[place][0], ends[place], since.get(place)
        if known is not None and known.end > end:
            raise _cut_off(place, end, known.end, is_same=last is not None and place.topic in last.topic_ids)
        if known is not None and first > known.end:
            raise BadUsage(
                f"{place.topic}-{place.part} begins at {first}: records since the last window were removed",
                f"Run more often than the shortest retention. {ANEW}",
            )
        start = first if known is None else known.end
        policy, clock = policies[place.topic]
        extents[place] = OffsetRange(
            start,
            max(start, end),
            seen.get(place, (end, epoch))[0],
            is_whole=first == 0,
            is_compacted="compact" in policy,
            has_append_time=clock == "LogAppendTime",
            # where nothing came nothing is read, so that it is not known yet whether the log was cut
            epoch=known.epoch if known is not None and end <= start else epoch,
            start_epoch=-1 if known is None else known.epoch,
        )
    return Window(internal.half, internal.op, internal.parked, taken_ms, extents, topic_ids)


def _find_places(admin: AdminClient, internal: InternalTopics, wanted: list[str]) -> list[QueuePlace]:
    """Every partition to be read. Raises BadUsage for a topic that is not there."""
    topics = admin.list_topics(timeout=_TIMEOUT_S).topics
    real = wanted or [name for name in topics if not is_reserved_topic(name, internal)]
    names = sorted({internal.half, internal.op, internal.parked, *real})
    _check_there(names, topics)
    parts = [(QueuePlace(name, part.id), part) for name in names for part in topics[name].partitions.values()]
    if lone := min([place for place, part in parts if part.leader < 0], default=None):
        # the client, asked for the offsets of such a one, may end the process (librdkafka 2.16)
        reason = f"{lone.topic}-{lone.part} has no leader"
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, reason))
    return sorted(place for place, _ in parts)


def _check_there(names: Iterable[str], topics: Container[str]) -> None:
    for name in names:
        if name not in topics:
            raise BadUsage(f"topic {name} does not exist", "See `outbox-bridge topic list`, and topics.prefix.")


def _check_known(last: Window, places: list[QueuePlace], wanted: list[str], topic_ids: Mapping[str, str]) -> None:
    """Raises BadUsage where something that was read before would not be read on: its records would seem missing."""
    anew = [topic for topic, known in sorted(last.topic_ids.items()) if topic_ids.get(topic, known) != known]
    if anew:
        raise _made_anew(anew[0])
    lost = min(last.extents.keys() - set(places), default=None)
    if lost is None:
        return
    if wanted and lost.topic not in topic_ids:
        raise BadUsage(f"the last run read topic {lost.topic}, this one does not", "Name it in --topics too.")
    raise BadUsage(
        f"{lost.topic}-{lost.part}, which the last run read, does not exist any more",
        f"If that is meant to be so: {ANEW}",
    )


def _made_anew(topic: str) -> BadUsage:
    return BadUsage(f"topic {topic} was made anew since the last run", ANEW)


def _cut_off(place: QueuePlace, end: int, read: int, *, is_same: bool) -> BadUsage:
    """`is_same`: by Kafka's id it is the topic that was read."""
    if not is_same:
        return _made_anew(place.topic)
    return BadUsage(
        f"{place.topic}-{place.part} ends at {end}, the last run has read up to {read}: its newest records are lost",
        CUT,
    )


def _read_ids(admin: AdminClient, topics: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for names in _portions(sorted(topics)):
        answers = admin.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT_S)
        found |= {name: str(answer.result(_ANSWER_S).topic_id) for name, answer in answers.items()}
    return found


def _portions(things: list[_Thing]) -> Iterator[list[_Thing]]:
    """What one request asks for: of ten thousand topics at once a broker's answer takes longer than is waited for."""
    return (things[begin : begin + _PORTION] for begin in range(0, len(things), _PORTION))


def _offsets(
    admin: AdminClient, places: list[QueuePlace], spec: Callable[[], OffsetSpec]
) -> dict[QueuePlace, tuple[int, int]]:
    """Offset, and the leader's epoch."""
    found: dict[QueuePlace, tuple[int, int]] = {}
    for portion in _portions(places):
        asked = {TopicPartition(*place): spec() for place in portion}
        answers = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_TIMEOUT_S)
        for at, answer in answers.items():
            told = answer.result(_ANSWER_S)
            epoch = -1 if told.leader_epoch is None else told.leader_epoch
            found[QueuePlace(at.topic, at.partition)] = told.offset, epoch
    if silent := min([place for place, (offset, _) in found.items() if offset == OFFSET_INVALID], default=None):
        # what no broker answered in time comes back as a success
        reason = f"no answer to a question for the offsets of {silent.topic}-{silent.part}"
        raise KafkaException(KafkaError(KafkaError.REQUEST_TIMED_OUT, reason))
    return found


def _read_policies(admin: AdminClient, topics: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Clean-up policy and kind of timestamp of each topic."""
    found: dict[str, tuple[str, str]] = {}
    for names in _portions(sorted(topics)):
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        for resource, answer in admin.describe_configs(resources, request_timeout=_TIMEOUT_S).items():
            entries = answer.result(_ANSWER_S)
            found[resource.name] = entries["cleanup.policy"].value, entries["message.timestamp.type"].value
    return found
