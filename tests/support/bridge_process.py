"""Real bridge processes on a real Kafka, and independent witnesses: a reader outside the project's code, an endpoint.

bridge = Bridge.create(kafka, tmp_path)            # its own internal topics, database, ports
with bridge.serve() as process:                    # `outbox-bridge serve`, waits until it is ready
    reply = process.post("/v1/transactions", {...})
records = read_committed(kafka, ["orders"])
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx2
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from api.web.guard import MARK
from bridge.broker.ports import choose_free_port
from tests.support.process_pool import Child, shared_pool

READY_SECONDS = 180.0
_COMMAND_S = 240.0
_OPEN_SETTINGS = {
    "OUTBOX_BRIDGE_INSECURE_NO_AUTH": "true",
    "OUTBOX_BRIDGE_CALLBACKS__PROVE_OWNERSHIP": "none",  # endpoints of examples answer nobody
}


def wait_until(what: Callable[[], Any], seconds: float = 150.0, name: str = "condition") -> Any:
    """The first true value of `what`, asked often; fails after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = what()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{name} did not come true in {seconds} s")
        time.sleep(0.02)


class Record(NamedTuple):
    """What an independent consumer read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int

    @property
    def transaction_id(self) -> str | None:
        """The id header, if it is there."""
        return next((v.decode() for n, v in self.headers if n == "transaction-id" and v is not None), None)


def read_committed(kafka: str, topics: Sequence[str], *, isolation: str = "read_committed") -> list[Record]:
    """Everything from the beginning to the present end of the topics, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": f"witness-{secrets.token_hex(4)}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end of a partition is told only with the answer to a fetch
        }
    )
    records: list[Record] = []
    try:
        metadata = consumer.list_topics(timeout=10)
        places = [TopicPartition(t, p, 0) for t in topics for p in metadata.topics[t].partitions]
        consumer.assign([TopicPartition(p.topic, p.partition, consumer.get_watermark_offsets(p)[0]) for p in places])
        open_places = {(p.topic, p.partition) for p in places}
        end = time.monotonic() + 60
        while open_places:
            assert time.monotonic() < end, f"no end of {open_places}"
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                open_places.discard((message.topic(), message.partition()))
                continue
            headers = tuple((n, v) for n, v in message.headers() or ())
            records.append(
                Record(
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    message.key(),
                    message.value(),
                    headers,
                    message.timestamp()[1],
                )
            )
    finally:
        consumer.close()
    return sorted(records, key=lambda r: (r.topic, r.partition, r.offset))


def create_topics(
    kafka: str, topics: Mapping[str, int], config: Mapping[str, str] | None = None, *, replicas: int = 1
) -> None:
    """Topics with so many partitions, ready to be written to."""
    admin = AdminClient({"bootstrap.servers": kafka})
    made = admin.create_topics([NewTopic(t, n, replicas, config=dict(config or {})) for t, n in topics.items()])
    for future in made.values():
        future.result(30)
    wait_until(lambda: topics.keys() <= admin.list_topics(timeout=10).topics.keys(), name="topics")


class BridgeProcess:
    """One running `outbox-bridge serve`."""

    def __init__(self, popen: "subprocess.Popen[bytes] | Child", port: int, log: Path) -> None:
        self.popen = popen
        self.port = port
        self.log = log
        self.http = httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers={MARK: "1"}, timeout=30)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self, seconds: float = READY_SECONDS) -> Self:
        """Returns when /readyz says so. Fails with the log when the process ends first."""

        def is_ready() -> bool:
            if self.popen.poll() is not None:
                raise AssertionError(f"bridge ended with {self.popen.returncode}:\n{self.log.read_text()[-4000:]}")
            try:
                return self.http.get("/readyz").status_code == 200
            except httpx2.TransportError:
                return False

        try:
            wait_until(is_ready, seconds, "readiness")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log.read_text()[-4000:]}") from None
        return self

    def post(self, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        return self.http.post(path, json=body, **options) if body is not None else self.http.post(path, **options)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        return self.http.get(path, **options)

    def send(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: no `finally` runs."""
        self.popen.kill()
        self.popen.wait(30)

    def pause(self) -> None:
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM, then waits; the exit code."""
        if self.popen.poll() is None:
            self.resume()
            self.send(signal.SIGTERM)
        try:
            return self.popen.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()
        self.stop()


@dataclass(slots=True)
class Bridge:
    """One bridge: a set of internal topics, a database, and any number of processes."""

    kafka: str
    directory: Path
    prefix: str
    database_url: str
    settings: dict[str, str] = field(default_factory=dict)
    python: str = sys.executable  # another one has another release installed

    @classmethod
    def create(
        cls,
        kafka: str,
        directory: Path,
        *,
        queues: int = 2,
        database_url: str | None = None,
        python: str = sys.executable,
        **settings: str,
    ) -> "Bridge":
        """Migrated, with topics of its own."""
        prefix = f"b{secrets.token_hex(4)}."
        url = database_url or f"sqlite:///{directory / 'bridge.db'}"
        chosen = {"OUTBOX_BRIDGE_TOPICS__QUEUES": str(queues), **settings}
        bridge = cls(kafka, directory, prefix, url, chosen, python)
        bridge.run("migrate")
        return bridge

    @property
    def half_topic(self) -> str:
        return f"{self.prefix}RMQ_SYS_TRANS_HALF_TOPIC"

    @property
    def op_topic(self) -> str:
        return f"{self.prefix}RMQ_SYS_TRANS_OP_HALF_TOPIC"

    @property
    def parked_topic(self) -> str:
        return f"{self.prefix}TRANS_CHECK_MAX_TIME_TOPIC"

    @property
    def group(self) -> str:
        return f"{self.prefix}CID_RMQ_SYS_TRANS"

    def environment(self, **extra: str) -> dict[str, str]:
        """The environment of this bridge's processes."""
        kafka = json.dumps({"bootstrap.servers": self.kafka})
        return {
            **os.environ,
            "OUTBOX_BRIDGE_KAFKA": kafka,
            "OUTBOX_BRIDGE_DATABASE_URL": self.database_url,
            "OUTBOX_BRIDGE_TOPICS__PREFIX": self.prefix,
            "OUTBOX_BRIDGE_CALLBACKS__ALLOW_NETWORKS": '["127.0.0.0/8"]',
            "OUTBOX_BRIDGE_LOG__FORMAT": "json",
            "OUTBOX_BRIDGE_AUTO_CREATE_GROUPS": "true",
            **_OPEN_SETTINGS,
            **self.settings,
            **extra,
        }

    def run(self, *arguments: str) -> str:
        """One command of the command line, to its end."""
        done = self._run(arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run_refused(self, *arguments: str) -> str:
        """One command that fails; what it says."""
        done = self._run(arguments)
        assert done.returncode != 0, done.stdout
        return done.stdout + done.stderr

    def _run(self, arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        if self._is_this_release:
            return shared_pool().run(["api", *arguments], self.environment(), self.directory, _COMMAND_S)
        return subprocess.run(
            [self.python, "-m", "api", *arguments],
            env=self.environment(),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )

    @property
    def _is_this_release(self) -> bool:
        return self.python == sys.executable

    def start(
        self,
        roles: str = "api,settler,projector",
        *,
        kafka: str | None = None,
        port: int | None = None,
        is_shielded: bool = False,
        module: str = "api",
        **extra: str,
    ) -> BridgeProcess:
        """A process that may not be ready yet.

        `module`: what is run, with the arguments of `api`. `kafka`: another way to the same cluster, a proxy; `port`:
        that of a process that has ended, whose log goes on. `is_shielded`: from Ctrl-C in the terminal, by a group of
        its own.
        """
        port = port or choose_free_port()
        log = self.directory / f"{roles.replace(',', '-')}-{port}.log"
        environment = self.environment(**extra)
        if kafka is not None:
            environment["OUTBOX_BRIDGE_KAFKA"] = json.dumps({"bootstrap.servers": kafka})
        arguments = ["serve", "--roles", roles, "--port", str(port)]
        if self._is_this_release and module == "api":
            child = shared_pool().start(["api", *arguments], environment, self.directory, log, is_shielded=is_shielded)
            return BridgeProcess(child, port, log)
        with log.open("ab") as output:
            popen = subprocess.Popen(
                [self.python, "-m", module, *arguments],
                env=environment,
                cwd=self.directory,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0 if is_shielded else None,
            )
        return BridgeProcess(popen, port, log)

    def serve(self, roles: str = "api,settler,projector", **options: Any) -> BridgeProcess:
        """A ready process."""
        return self.start(roles, **options).wait_ready()


class ReceivedCall(NamedTuple):
    """A call as it came: headers by their names in lower case, body as it stood."""

    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class CheckEndpoint:
    """A producer's check endpoint: answers as `answers` says, keeps every call. `status`: of all its answers.

    `answers`: by transaction id, or by the key of the first message. A transaction whose answer is "" is left out.
    """

    port: int
    answers: dict[str, str] = field(default_factory=dict)
    default: str = "UNKNOWN"
    status: int = 200
    calls: list[dict[str, Any]] = field(default_factory=list)
    received: list[ReceivedCall] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/check"

    def answer(self, check: Mapping[str, Any]) -> str:
        """To one of the checks of a call."""
        by_key = self.answers.get(check["messages"][0].get("key") or "", self.default)
        return self.answers.get(check["transaction_id"], by_key)

    def asked(self, transaction_id: str) -> int:
        """How often it was asked about a transaction."""
        return sum(c["transaction_id"] == transaction_id for call in self.calls for c in call["checks"])


@contextmanager
def check_endpoint(default: str = "UNKNOWN") -> Iterator[CheckEndpoint]:
    """A running endpoint."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            call = json.loads(raw)
            endpoint.received.append(ReceivedCall({n.lower(): v for n, v in self.headers.items()}, raw))
            endpoint.calls.append(call)
            resolutions = [
                {"transaction_id": c["transaction_id"], "nonce": c["nonce"], "resolution": answer}
                for c in call["checks"]
                if (answer := endpoint.answer(c))
            ]
            body = json.dumps({"resolutions": resolutions}).encode()
            self.send_response(endpoint.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint = CheckEndpoint(server.server_address[1], default=default)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
