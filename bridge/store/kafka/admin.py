"""What the cluster says of its topics, asked with time-outs, errors translated."""

import asyncio
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from concurrent.futures import Future, wait
from enum import Enum
from typing import Any, TypeVar

import structlog
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigEntry, ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.admin import TopicDescription as Described  # type: ignore[attr-defined]

from bridge.core.errors import StoreError, StoreTimeout, StoreUnavailable
from bridge.core.topics import KafkaRight, Resource, TopicDescription
from bridge.store.kafka.client import SILENCE, Silence, error_of, make_store_error
from bridge.store.kafka.options import ClientErrors, KafkaConfig, admin_options
from bridge.store.message_store import ClusterDescription, TopicOutline
from bridge.turns import take_error

T = TypeVar("T")
_LOG = structlog.get_logger()

_GRACE_S = 1.0  # the client ends its requests itself; this is for a client that does not


class _Opened:
    """A client, held here alone, and what it has not answered yet."""

    def __init__(self, config: KafkaConfig, errors: ClientErrors) -> None:
        self.client: AdminClient | None = AdminClient(admin_options(config, errors))
        self.unanswered: set[Future[Any]] = set()

    def note(self, futures: Iterable["Future[Any]"]) -> None:
        """The caller may be cancelled before the answer comes."""
        for future in futures:
            self.unanswered.add(future)
            future.add_done_callback(self.unanswered.discard)

    def poll(self) -> None:
        """Its log and its errors wait for this."""
        if self.client is not None:
            self.client.poll(0)

    def end(self, timeout_s: float) -> None:
        """Lets the client go, once it has all its answers or has given up on them: one that comes while it ends
        aborts the process. Its end waits for its threads: not to be called in the loop's."""
        wait(set(self.unanswered), timeout_s)
        self.client = None


class Asker:
    """Requests get the client and their time-out in seconds.

    A client that nobody has answered for too long is replaced; `generation` counts them.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self.errors = ClientErrors()
        self.generation = 0
        self._silence = Silence()
        self._config = config
        self._servers = config.options["bootstrap.servers"]
        self._timeout_s = config.read_timeout_ms / 1000
        self._opened: _Opened | None = _Opened(config, self.errors)
        self._ending: set[asyncio.Task[None]] = set()

    async def ask(self, request: Callable[[AdminClient, float], "Future[T]"]) -> T:
        """The answer. Raises StoreTimeout, StoreUnavailable."""
        answers = await self.ask_each(lambda client, timeout_s: {None: request(client, timeout_s)})
        answer = answers[None]
        if isinstance(answer, KafkaException):
            raise self.make_error(answer) from answer
        return answer

    async def ask_each(
        self, request: Callable[[AdminClient, float], Mapping[str | None, "Future[T]"]], about: Hashable = None
    ) -> dict[str | None, T | KafkaException]:
        """The answer of each name, or the error. Raises StoreTimeout, StoreUnavailable."""
        opened, began = self._get_opened(), self._silence.now()
        answers: dict[str | None, T | KafkaException] = {}
        try:
            async with asyncio.timeout(self._timeout_s + _GRACE_S):
                asked = request(_client_of(opened), self._timeout_s)
                opened.note(asked.values())
                for name, future in asked.items():
                    waiting: asyncio.Future[T] = asyncio.wrap_future(future)
                    waiting.add_done_callback(take_error)
                    try:
                        answers[name] = await asyncio.shield(waiting)
                    except KafkaException as raised:
                        answers[name] = raised
        except KafkaException as raised:
            raise self.make_error(raised) from raised
        except TimeoutError:
            self._hear_nothing(opened, about, began)
            raise StoreTimeout(f"no answer from {self._servers}{self._tell_complaint()}") from None
        finally:
            opened.poll()
        if any(map(_is_silent, answers.values())):
            self._hear_nothing(opened, about, began)
        else:
            self._silence.end(about)
            self.errors.last_error = None
        return answers

    async def run(self, call: Callable[[AdminClient, float], T]) -> T:
        """A call that blocks, off the loop. Raises StoreTimeout, StoreUnavailable."""
        opened, began = self._get_opened(), self._silence.now()
        try:
            answer = await asyncio.to_thread(lambda: call(_client_of(opened), self._timeout_s))
        except KafkaException as raised:
            opened.poll()
            if _is_silent(raised):
                self._hear_nothing(opened, None, began)
            raise self.make_error(raised) from raised
        self._silence.end()
        return answer

    async def close(self) -> None:
        """Lets all clients go."""
        opened, self._opened = self._opened, None
        if opened is not None:
            self._end(opened)
        if self._ending:
            await asyncio.wait(self._ending)

    def make_error(self, raised: KafkaException) -> StoreError:
        """Names the servers where nobody has answered, and why: one of them may have answered, and have named another
        address (`advertised.listeners`)."""
        error = make_store_error(error_of(raised))
        if not isinstance(error, StoreTimeout):
            return error
        return StoreTimeout(f"{error}, at {self._servers}{self._tell_complaint()}")

    def _tell_complaint(self) -> str:
        return f"; {self.errors.last_error}" if self.errors.last_error else ""

    def _hear_nothing(self, opened: _Opened, about: Hashable, began: float) -> None:
        if self._opened is not opened or not self._silence.go_on(about, began):
            return
        _LOG.error("kafka_admin_client_renewed", reason=self.errors.last_error or "no answer")
        self._opened = _Opened(self._config, self.errors)
        self.generation += 1
        self._end(opened)

    def _end(self, opened: _Opened) -> None:
        ending = asyncio.create_task(asyncio.to_thread(opened.end, self._timeout_s + _GRACE_S))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _get_opened(self) -> _Opened:
        if self._opened is None:
            raise StoreUnavailable("the store is closed")
        return self._opened


def _client_of(opened: _Opened) -> AdminClient:
    if opened.client is None:
        raise StoreTimeout("the admin client was replaced")
    return opened.client


def _is_silent(answer: object) -> bool:
    """A question for offsets that nobody has answered in time comes back as a success, without an offset."""
    if isinstance(answer, KafkaException):
        return error_of(answer).code() in SILENCE
    return getattr(answer, "offset", None) == OFFSET_INVALID


_VISIBLE_S, _LOOK_S = 10.0, 0.02
_ASKED_FOR = "outbox-bridge"  # a topic that need not be there
_NOT_THERE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001


class Missing(Enum):
    """Why there is no description."""

    NOT_THERE = "not there"
    DENIED = "denied"


class KafkaTopicAdmin:
    """TopicAdmin."""

    def __init__(self, config: KafkaConfig) -> None:
        self._asker = Asker(config)
        self.errors = self._asker.errors

    async def ping(self) -> None:
        """A refusal is an answer too."""
        asked = ConfigResource(ResourceType.TOPIC, _ASKED_FOR)
        answers = await self._asker.ask_each(
            lambda client, timeout_s: {None: client.describe_configs([asked], request_timeout=timeout_s)[asked]}
        )
        answer = answers[None]
        if isinstance(answer, KafkaException) and error_of(answer).code() < 0:
            raise self._asker.make_error(answer) from answer

    async def describe_cluster(self) -> ClusterDescription:
        """The client's own DescribeCluster ends the process (SIGABRT) if a broker that is starting names no brokers."""
        found = await self._asker.run(lambda client, timeout_s: client.list_topics(timeout=timeout_s))
        return ClusterDescription(
            found.cluster_id or "", [f"{node.host}:{node.port}" for node in found.brokers.values()]
        )

    async def describe_topics(
        self, names: Collection[str], *, with_denied: bool = False
    ) -> dict[str, TopicDescription | None]:
        """One request for all the topics, one for all their settings, together."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        topics, configs = await asyncio.gather(self._ask_topics(wanted), self._ask_configs(wanted))
        denied = [name for name in wanted if Missing.DENIED in (topics[name], configs[name])]
        if denied and not with_denied:
            raise StoreUnavailable(f"no right to describe {', '.join(denied)}")
        return {name: _describe(name, topics[name], configs[name]) for name in wanted}

    async def identify_topics(self, names: Collection[str]) -> dict[str, TopicOutline | None]:
        found = await self._ask_topics(sorted(set(names)))
        if denied := [name for name, topic in found.items() if topic is Missing.DENIED]:
            raise StoreUnavailable(f"no right to describe {', '.join(denied)}")
        return {
            name: None if isinstance(topic, Missing) else TopicOutline(str(topic.topic_id), len(topic.partitions))
            for name, topic in found.items()
        }

    async def list_topics(self) -> list[str]:
        found = await self._asker.run(lambda client, timeout_s: client.list_topics(timeout=timeout_s))
        return sorted(name for name in found.topics if not name.startswith("__"))

    async def list_groups(self) -> list[str]:
        found = await self._asker.ask(lambda client, timeout_s: client.list_consumer_groups(request_timeout=timeout_s))
        return sorted(listed.group_id for listed in found.valid)

    async def create_topic(self, name: str, queues: int, replication_factor: int, config: Mapping[str, str]) -> bool:
        topic = NewTopic(name, queues, replication_factor, config=dict(config))
        return await self._make(
            name, True, lambda client, timeout_s: client.create_topics([topic], request_timeout=timeout_s)
        )

    async def delete_topic(self, name: str) -> bool:
        return await self._make(
            name, False, lambda client, timeout_s: client.delete_topics([name], request_timeout=timeout_s)
        )

    async def _make(
        self, name: str, is_there: bool, request: "Callable[[AdminClient, float], Mapping[str, Future[None]]]"
    ) -> bool:
        """Whether the request made it so that the topic is there, or is not; False if it was so already."""
        answers = await self._asker.ask_each(lambda client, timeout_s: {name: request(client, timeout_s)[name]})
        answer = answers[name]
        if not isinstance(answer, KafkaException):
            # the controller has made or deleted it; brokers learn of it a moment later. Raises StoreTimeout
            end = time.monotonic() + _VISIBLE_S
            while ((await self.describe_topics([name]))[name] is not None) is not is_there:
                if time.monotonic() > end:
                    done = "made" if is_there else "deleted"
                    raise StoreTimeout(f"topic {name} was {done}, but not every broker knows it yet")
                await asyncio.sleep(_LOOK_S)
            return True
        already = KafkaError.TOPIC_ALREADY_EXISTS if is_there else KafkaError.UNKNOWN_TOPIC_OR_PART
        if error_of(answer).code() == already:
            return False
        if error_of(answer).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise StoreUnavailable(f"no right to {'create' if is_there else 'delete'} topic {name}") from answer
        raise self._asker.make_error(answer) from answer

    async def count_members(self, group: str) -> int:
        """Living members of a consumer group; 0 for one that is not known. Raises StoreError."""
        described = await self._asker.ask(
            lambda client, timeout_s: client.describe_consumer_groups([group], request_timeout=timeout_s)[group]
        )
        return len(described.members)

    async def find_denied(self, rights: Collection[KafkaRight]) -> list[KafkaRight]:
        """Those that this client does not have, as far as Kafka tells: it says nothing of transactional ids, of what
        is not there, and of groups before it has loaded them. Raises StoreError."""
        names = sorted({right.name for right in rights if right.resource is Resource.TOPIC and not right.is_prefix})
        allowed = {(Resource.TOPIC, name): found for name, found in (await self._ask_operations(names)).items()}
        for group in {right.name for right in rights if right.resource is Resource.GROUP}:
            allowed[Resource.GROUP, group] = await self._ask_group_operations(group)
        return [
            right
            for right in rights
            if (known := allowed.get((right.resource, right.name))) is not None
            and AclOperation[right.operation.name] not in known
        ]

    async def _ask_operations(self, topics: list[str]) -> dict[str, Collection[Any] | None]:
        """None for a topic that is not there."""
        found = await self._ask_topics(topics) if topics else {}
        return {
            name: () if topic is Missing.DENIED else None if isinstance(topic, Missing) else topic.authorized_operations
            for name, topic in found.items()
        }

    async def _ask_group_operations(self, group: str) -> Collection[Any] | None:
        answers = await self._asker.ask_each(
            lambda client, timeout_s: {
                None: client.describe_consumer_groups(
                    [group], include_authorized_operations=True, request_timeout=timeout_s
                )[group]
            }
        )
        answer = answers[None]
        if not isinstance(answer, KafkaException):
            found: Collection[Any] | None = answer.authorized_operations
            return found
        # a broker that has just started cannot tell yet, as for other errors that are no denial
        return () if error_of(answer).code() == KafkaError.GROUP_AUTHORIZATION_FAILED else None

    async def close(self) -> None:
        """Lets the client go."""
        await self._asker.close()

    async def _ask_topics(self, names: list[str]) -> dict[str, Described | Missing]:
        def request(client: AdminClient, timeout_s: float) -> Mapping[str | None, "Future[Described]"]:
            asked = TopicCollection(names)
            described = client.describe_topics(asked, include_authorized_operations=True, request_timeout=timeout_s)
            return dict(described.items())

        return await self._find_each(request, names)

    async def _ask_configs(self, names: list[str]) -> dict[str, dict[str, ConfigEntry] | Missing]:
        resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in names}

        def request(client: AdminClient, timeout_s: float) -> Mapping[str | None, "Future[dict[str, ConfigEntry]]"]:
            futures = client.describe_configs(list(resources.values()), request_timeout=timeout_s)
            return {name: futures[resource] for name, resource in resources.items()}

        return await self._find_each(request, names)

    async def _find_each(
        self, request: Callable[[AdminClient, float], Mapping[str | None, "Future[T]"]], names: Collection[str]
    ) -> dict[str, T | Missing]:
        """What was found of each name."""
        answers = await self._asker.ask_each(request)
        found: dict[str, T | Missing] = {}
        for name in names:
            answer = answers[name]
            if not isinstance(answer, KafkaException):
                found[name] = answer
            elif error_of(answer).code() in _NOT_THERE:
                found[name] = Missing.NOT_THERE
            elif error_of(answer).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                found[name] = Missing.DENIED
            else:
                raise self._asker.make_error(answer) from answer
        return found


def _describe(
    name: str, topic: Described | Missing, entries: Mapping[str, ConfigEntry] | Missing
) -> TopicDescription | None:
    if topic is Missing.NOT_THERE or entries is Missing.NOT_THERE:
        return None
    if isinstance(topic, Missing) or isinstance(entries, Missing):
        return TopicDescription(name, "", 0, frozenset(), 0, 0, True, 0, 0, {}, is_writable=False)
    config = {name: entry.value for name, entry in entries.items() if entry.value is not None}
    partitions = topic.partitions
    return TopicDescription(
        name=topic.name,
        topic_id=str(topic.topic_id),
        queues=len(partitions),
        leaderless=frozenset([p.id for p in partitions if p.leader is None or p.leader.id < 0]),
        replication_factor=min(len(p.replicas) for p in partitions),
        max_message_bytes=int(config["max.message.bytes"]),
        is_log_append_time=config["message.timestamp.type"] == "LogAppendTime",
        timestamp_before_max_ms=int(config["message.timestamp.before.max.ms"]),
        timestamp_after_max_ms=int(config["message.timestamp.after.max.ms"]),
        config=config,
        is_writable=AclOperation.WRITE in (topic.authorized_operations or (AclOperation.WRITE,)),
    )
