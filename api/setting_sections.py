"""The sections of the settings: names, types, defaults and bounds. The text below a setting is its documentation."""

import ipaddress
from base64 import b64decode
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from api.process import LogFormat, LogLevel
from api.web.limits import QuotaConfig
from bridge.core.grants import ALGORITHMS, PRINCIPAL_NAME, USUAL_ALGORITHMS
from bridge.core.keyring import parse_secret_keys, read_key_id
from checker.endpoint_guard import is_safe

Port = Annotated[int, Field(ge=0, le=65_535)]
# as in a URL, in lower case as browsers send it; without a port: any
HostName = Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:]{2,39}\])(:[0-9]{1,5})?$")]
WebhookEvent = Literal[
    "transaction.parked", "group.failing", "group.recovered", "queue.stalled", "reconciliation.findings"
]
_MOST = 10**15  # what SQL can compare with
PrincipalName = Annotated[str, Field(pattern=PRINCIPAL_NAME)]


class SettingSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TopicsSettings(SettingSection):
    """The internal topics."""

    prefix: Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9._-]*$")] = ""
    """Stands before the names of the internal topics, of the settlers' group and of transactional ids. Two bridges on
    one Kafka need two prefixes."""
    queues: Annotated[int, Field(ge=1, le=1_024)] = 4
    """Partitions of the journal and of the op topic; at most so many settlers work at once. Fixed once `migrate` has
    made the topics."""
    overridden: tuple[str, ...] = ()
    """Faults of the internal topics that a process accepts instead of refusing to start, such as `retention`."""


class TlsSettings(SettingSection):
    """PEM files, read again when they change."""

    cert: Path | None = None
    """Certificate that the API shows, with its chain."""
    key: Path | None = None
    """Private key of `cert`."""
    client_ca: Path | None = None
    """Certificates of the authorities that sign certificates of clients."""
    client_auth: Literal["optional", "required"] = "optional"
    """Whether every client must show a certificate (`required`), or may (`optional`)."""


class MaskSettings(SettingSection):
    """Contents of messages that are shown to administrators of their group alone."""

    topic: Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]{1,249}\*?|\*)$")]
    """The topic; or how topics begin and `*`; or `*` for all."""
    headers: tuple[str, ...] = ()
    """Names of headers, in any case."""
    paths: tuple[Annotated[str, Field(pattern=r"^[^.]+(\.[^.]+)*$")], ...] = ()
    """Members of JSON values, as `customer.iban`; `*` is any member, and arrays are gone through. Of a value that is no
    JSON object or array nothing is shown."""


class HttpSettings(SettingSection):
    """Where and how the API listens."""

    host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback, callers need keys."""
    port: Port = 8780
    """Port of the API; 0 takes a free one."""
    tls: TlsSettings = TlsSettings()
    metrics_port: Port | None = None
    """A second port with `/livez`, `/readyz` and `/metrics` alone, which asks for no key. `/metrics` is then nowhere
    else."""
    metrics_host: str | None = None
    """Address of `metrics_port`; `http.host` if empty."""
    metrics_tls: bool = False
    """Whether `metrics_port` speaks TLS, with the certificate of `http.tls`."""
    allowed_hosts: tuple[HostName, ...] = ()
    """Names by which the bridge is called, besides its own address; `name` or `name:port`."""
    console: Literal["on", "read-only", "off"] = "on"
    """Pages for operators at `/console/`: whole, without acts, or not at all."""
    masks: tuple[MaskSettings, ...] = ()
    """Rules by which pages and `GET` mask contents of messages."""
    reports: Path = Path(".outbox-bridge/reports")
    """Folder of the runs of `report run` (its `--out`), for the console's page of reports."""
    reuse_port: bool = False
    """Whether several processes of one machine may listen on one port."""
    backlog: Annotated[int, Field(ge=1, le=65_535)] = 2_048
    """Connections that may wait to be accepted."""
    keep_alive_seconds: Annotated[int, Field(ge=1, le=3_600)] = 75
    """How long a connection may rest between two requests; longer than a balancer keeps it, mostly 60."""
    receive_seconds: Annotated[float, Field(ge=0.1, le=600)] = 10
    """How long a request may take to arrive."""
    drain_seconds: Annotated[int, Field(ge=0, le=25)] = 10
    """How long requests may go on after SIGTERM."""


class IssuerSettings(SettingSection):
    """An OIDC issuer whose tokens are accepted."""

    issuer: str
    """Its https URL, as in `iss`."""
    audience: Annotated[str, Field(min_length=1)]
    """What `aud` of a token must name."""
    jwks_url: str | None = None
    """Where its keys are; its discovery document says so if this is empty."""
    algorithms: Annotated[tuple[str, ...], Field(min_length=1)] = USUAL_ALGORITHMS
    """Signatures that are accepted."""
    claim: Annotated[str, Field(min_length=1)] = "sub"
    """The claim that names the principal."""
    prefix: str = ""
    """Put before the name that the claim holds."""
    max_life_seconds: Annotated[int, Field(ge=60, le=86_400)] = 3_600
    """Longest life of a token that is accepted."""

    @field_validator("issuer", "jwks_url")
    @classmethod
    def _is_safe(cls, url: str | None) -> str | None:
        if url is not None and not is_safe(url):
            raise ValueError("not an https URL")
        return url

    @field_validator("algorithms")
    @classmethod
    def _are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := set(names) - set(ALGORITHMS):
            raise ValueError(f"{', '.join(sorted(unknown))}: only {', '.join(ALGORITHMS)} can be verified")
        return names


class AuthSettings(SettingSection):
    """Who may call."""

    admin_key: SecretStr | None = None
    """A key that may do everything, to make the others with; `outbox-bridge key new` makes one. It stands in no table
    and ends when it is taken out of the settings."""
    admin_key_file: Path | None = None
    """File that holds `admin_key`."""
    issuers: tuple[IssuerSettings, ...] = ()
    """Issuers of tokens (OIDC)."""
    certificates: dict[str, PrincipalName] = Field(default_factory=dict)
    """Which principal the name in a client's certificate stands for: `DNS:name` or `URI:text` to a principal."""

    @field_validator("certificates")
    @classmethod
    def _are_names(cls, principals: dict[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, principal in principals.items():
            kind, _, text = name.partition(":")
            if kind not in {"DNS", "URI"} or not text:
                raise ValueError(f"{name} is neither DNS:name nor URI:text")
            if found.setdefault(f"DNS:{text.lower()}" if kind == "DNS" else name, principal) != principal:
                raise ValueError(f"{name} is there twice")
        return found

    @field_validator("admin_key")
    @classmethod
    def _is_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and read_key_id(key.get_secret_value()) is None:
            raise ValueError("not a key as `outbox-bridge key new` makes them")
        return key


class SecuritySettings(SettingSection):
    """Secrets at rest."""

    keys: SecretStr | None = None
    """Keys that encrypt the secrets in SQL, the one to use first: `id:key`, with blanks or commas between."""
    keys_file: Path | None = None
    """File that holds `keys`."""

    @field_validator("keys")
    @classmethod
    def _are_keys(cls, keys: SecretStr | None) -> SecretStr | None:
        if keys is not None:
            parse_secret_keys(keys.get_secret_value())
        return keys


class QuotasSettings(SettingSection):
    """What one principal may ask of one api process, and how much one producer group may leave undecided."""

    requests_per_second: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Requests a principal may send to one process; no limit if empty."""
    bytes_per_second: Annotated[int, Field(ge=1_024)] | None = None
    """Bytes of bodies a principal may send to one process; no limit if empty."""
    pending_of_group: Annotated[int, Field(ge=1, le=_MOST)] | None = None
    """Transactions that a producer group may have pending; no limit if empty."""
    parked_of_group: Annotated[int, Field(ge=1, le=_MOST)] | None = None
    """Transactions that a producer group may have parked before it gets no new ones; no limit if empty."""

    @property
    def of_principal(self) -> QuotaConfig:
        """What each principal may use of a process."""
        return QuotaConfig(self.requests_per_second, self.bytes_per_second)


class LimitsSettings(SettingSection):
    """How much is taken on."""

    message_bytes: Annotated[int, Field(ge=1, le=64 * 1024 * 1024)] = 1024 * 1024
    """Largest message."""
    body_bytes: Annotated[int, Field(ge=1_024, le=256 * 1024 * 1024)] = 8 * 1024 * 1024
    """Largest body of a request, or line of NDJSON."""
    headers_per_message: Annotated[int, Field(ge=0, le=1_000)] = 64
    """Most headers of a message."""
    requests_in_flight: Annotated[int, Field(ge=1, le=100_000)] = 2_000
    """Requests that one process serves at once; as many streams of NDJSON besides."""
    in_flight_bytes: Annotated[int, Field(ge=1024 * 1024)] = 256 * 1024 * 1024
    """Bytes of requests that one process holds at once."""
    connections: Annotated[int, Field(ge=1, le=1_000_000)] = 4_000
    """Connections that one process takes; fewer where `ulimit -n` is small."""
    pending_transactions: Annotated[int, Field(ge=1)] = 2_000_000
    """Pending transactions of the whole bridge; more are refused."""


class RemotingSettings(SettingSection):
    """The door for clients of Apache RocketMQ, of processes with the role `remoting`."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 9876
    """Port of the door, name server and broker in one; 0 takes a free one."""
    advertise: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,253}:[0-9]{1,5}$")] | None = None
    """`host:port` under which clients reach the door, as behind NAT or in Kubernetes; else its own address."""
    tls: Literal["off", "permissive", "required"] = "off"
    """Whether the port takes TLS, with the certificate of `http.tls`: no, beside plain connections, or nothing else."""
    key_from: tuple[str, ...] = ("__SHARDINGKEY", "KEYS")
    """Properties of a message of which the first that it has becomes the Kafka key; of KEYS the first word."""
    dropped_properties: tuple[str, ...] = ()
    """Properties that do not become headers; all others but RocketMQ's own do."""
    connections: Annotated[int, Field(ge=1, le=100_000)] = 2_000
    """Connections of one process at a time."""


class CallbacksSettings(SettingSection):
    """Which check endpoints may be called."""

    allow_networks: tuple[str, ...] = ()
    """Networks that may be called besides public addresses; in them http and any port are allowed."""
    prove_ownership: Literal["remote", "all", "none"] = "remote"
    """Endpoints that must answer a signed challenge before they are taken: those beyond loopback (`remote`), `all` or
    `none`."""

    @field_validator("allow_networks")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ipaddress.ip_network(network)
        return networks


class WebhookSettings(SettingSection):
    """A receiver of the bridge's own events."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    """What it is called in commands, metrics and the log."""
    url: SecretStr
    """Where events are sent; what `callbacks` says of endpoints is true of it."""
    url_file: Path | None = None
    """File that holds `url`."""
    secret: SecretStr
    """What signs them, as of producer groups: `whsec_` and base64 of 24 to 64 bytes. Several, with blanks or commas
    between, all sign."""
    secret_file: Path | None = None
    """File that holds `secret`."""
    events: Annotated[tuple[WebhookEvent, ...], Field(min_length=1)] = get_args(WebhookEvent)
    """Which ones it wants; all if left out."""

    @field_validator("secret")
    @classmethod
    def _can_sign(cls, secret: SecretStr) -> SecretStr:
        texts = read_secrets(secret)
        if not texts or not all(map(_is_signing_secret, texts)):
            raise ValueError("not `whsec_` and base64 of 24 to 64 bytes")
        return secret


def read_secrets(secret: SecretStr) -> list[str]:
    """All that stand in one setting."""
    return secret.get_secret_value().replace(",", " ").split()


def _is_signing_secret(text: str) -> bool:
    try:
        return text.startswith("whsec_") and 24 <= len(b64decode(text.removeprefix("whsec_"), validate=True)) <= 64
    except ValueError:
        return False


class AuditSettings(SettingSection):
    """Where acts are told besides the audit itself."""

    topic: str = ""
    """A topic that gets a CloudEvent for every act, made by you; without one there are none. The api needs the right to
    write to it."""


class CanarySettings(SettingSection):
    """A transaction now and then that shows whether the whole way is open, and how long it takes."""

    topic: str = ""
    """A topic that nobody else writes to, made by you; without one there is no canary. Each api process has its own."""
    interval_seconds: Annotated[float, Field(ge=1, le=3_600)] = 60.0
    """How often one is prepared, committed and read."""


class TracesSettings(SettingSection):
    """OpenTelemetry spans of transactions that a sampled trace belongs to."""

    export: Literal["off", "otlp"] = "off"
    """`otlp`: to the collector that the environment names (`OTEL_EXPORTER_OTLP_ENDPOINT`), by OTLP over HTTP. Needs the
    extra `otel`."""


class SettlerSettings(SettingSection):
    """How settlers share the queues."""

    session_ms: Annotated[int, Field(ge=1_000, le=60_000)] = 6_000
    """How soon another settler takes over from one that was killed. Brokers refuse less than their
    `group.min.session.timeout.ms`, 6000 unless set."""
    put_back_records: Annotated[int, Field(ge=1)] = 100_000
    """How many records a pending transaction may lie behind before its record is written again, which bounds what a
    successor must read."""
    held_body_bytes: Annotated[int, Field(ge=0)] = 67_108_864
    """Bodies of pending transactions that each queue keeps in memory; the others are read again when needed."""


class LogSettings(SettingSection):
    """What the log shows."""

    level: LogLevel = "info"
    """Least important level that is shown."""
    format: LogFormat = "auto"
    """`auto`: JSON when piped, text on a terminal."""
    requests: bool = False
    """Whether each request is a line: method, route, status, milliseconds, the request id that is the `instance` of its
    problem, and the id of its trace if it has one. Otherwise only answers from 500 on are."""
