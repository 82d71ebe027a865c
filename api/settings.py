"""Settings: defaults, then `outbox-bridge.toml`, then environment `OUTBOX_BRIDGE_*`, then flags.

Read once, at the edge. A setting nobody knows is an error that names the nearest one: a typing error would
otherwise be a default in production.
"""

import difflib
import hashlib
import os
import re
import tomllib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, PrivateAttr, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from api.setting_sections import (
    AuditSettings,
    AuthSettings,
    CallbacksSettings,
    CanarySettings,
    HttpSettings,
    LimitsSettings,
    LogSettings,
    QuotasSettings,
    RemotingSettings,
    SecuritySettings,
    SettlerSettings,
    TopicsSettings,
    TracesSettings,
    WebhookSettings,
)
from api.web.limits import ByteBudget
from bridge.core.errors import ConfigError
from bridge.core.keyring import SecretKey, parse_secret_keys
from checker.endpoint_guard import is_loopback, parse_servers

# --- secrets from files, as orchestrators mount them: `NAME_file` in the place of NAME ---

_OF_FILE = "_file"
_OF_SECTIONS = {"auth": {"admin_key"}, "security": {"keys"}, "kafka": None}  # None: any name


def read_secret_files(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of one source, with what is in the files that they name. Raises ConfigError, which shows no content."""
    read = _read(values, "", {"database_url"})
    for section, names in _OF_SECTIONS.items():
        if isinstance(read.get(section), Mapping):
            read[section] = _read(read[section], f"{section}.", names)
    if isinstance(webhooks := read.get("webhooks"), list):
        names = {"url", "secret"}
        read["webhooks"] = [
            _read(one, f"webhooks.{place}.", names) if isinstance(one, Mapping) else one
            for place, one in enumerate(webhooks)
        ]
    return read


def _read(values: Mapping[str, Any], section: str, names: Container[str] | None) -> dict[str, Any]:
    """Without the end of a file's last line."""
    read: dict[str, Any] = {}
    for name, value in values.items():
        plain = name.removesuffix(_OF_FILE)
        if plain == name or (names is not None and plain not in names):
            read[name] = value
            continue
        if plain in values:
            raise ConfigError(f"both {section}{plain} and {section}{name} are set; keep one")
        try:
            read[plain] = Path(str(value)).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"setting {section}{name}: cannot read {value}: {error}") from None
    return read


# --- the `[kafka]` table: what must not be said of encryption by accident ---

KafkaValue = str | bool | int | float

_UNVERIFIED = {
    "enable.ssl.certificate.verification": frozenset({"false", "f", "0"}),
    "ssl.endpoint.identification.algorithm": frozenset({"none"}),
}
_IN_CLEAR = frozenset({"plaintext", "sasl_plaintext"})


def check_options(options: Mapping[str, KafkaValue], *, is_insecure_allowed: bool) -> None:
    """Raises ConfigError where whoever answers would be taken for Kafka."""
    for name, values in _UNVERIFIED.items():
        value = options.get(name)
        if name in options and str(value).lower() in values and not is_insecure_allowed:
            raise ConfigError(
                f"kafka.{name} = {value} lets anybody on the way pass for Kafka, and read and forge everything; "
                "name the authority of the brokers' certificates in kafka.ssl.ca.location, or allow it with "
                "insecure_kafka"
            )


def find_open_servers(options: Mapping[str, KafkaValue]) -> list[str]:
    """Servers on other machines that are spoken to without encryption."""
    if str(options.get("security.protocol", "plaintext")).lower() not in _IN_CLEAR:
        return []
    servers = parse_servers(str(options.get("bootstrap.servers", "")))
    return [f"{host}:{port}" for host, port in servers if not is_loopback(host)]


# --- settings: defaults, then `outbox-bridge.toml`, then the environment, then flags ---

SETTINGS_FILE = "outbox-bridge.toml"
ENV_PREFIX = "OUTBOX_BRIDGE_"
_NESTED = "__"
# which bridge the command line talks to, who does, and how
_OF_COMMANDS = {
    f"{ENV_PREFIX}{name}" for name in ("URL", "KEY", "KEY_FILE", "CA_FILE", "CLIENT_CERT_FILE", "CLIENT_KEY_FILE")
}
_SERVICE_HOST = "_SERVICE_HOST"
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?")
_SECRET_WORDS = ("password", "passphrase", "secret", "sasl.jaas", "key.pem", "oauthbearer.config", "token")
_MASK = "********"


class Origin(Enum):
    """Where a value came from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


def _local_kafka() -> dict[str, KafkaValue]:
    return {"bootstrap.servers": "127.0.0.1:9092"}


class Settings(BaseSettings):
    """All settings of a process. Made by `load_settings`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter=_NESTED, extra="forbid", frozen=True, case_sensitive=False
    )

    kafka: dict[str, KafkaValue] = Field(default_factory=_local_kafka)
    """librdkafka's own options by their names. `NAME_file` takes the content of a file."""
    database_url: SecretStr | None = None
    """SQLAlchemy URL of the bridge's database; SQLite in `data_dir` if empty."""
    database_url_file: Path | None = None
    """File that holds `database_url`."""
    data_dir: Path = Path(".outbox-bridge")
    """Folder for what the bridge keeps on this machine."""
    insecure_no_auth: bool = False
    """Whether callers need no keys; on loopback alone."""
    insecure_kafka: bool = False
    """Whether certificates of brokers may go unverified."""
    auto_create_groups: bool = False
    """Whether a prepare makes a producer group that is not there. A name with a typing error is then a group that
    nobody is asked about."""
    check_after_seconds: Annotated[float, Field(ge=1, le=86_400)] = 6
    """How long the first check waits in groups that have the usual `check.transaction_timeout_seconds`. For trying."""
    transaction_id_header: bool = True
    """Whether published records carry the header `transaction-id`."""
    topics: TopicsSettings = TopicsSettings()
    http: HttpSettings = HttpSettings()
    auth: AuthSettings = AuthSettings()
    security: SecuritySettings = SecuritySettings()
    limits: LimitsSettings = LimitsSettings()
    quotas: QuotasSettings = QuotasSettings()
    callbacks: CallbacksSettings = CallbacksSettings()
    remoting: RemotingSettings = RemotingSettings()
    audit: AuditSettings = AuditSettings()
    canary: CanarySettings = CanarySettings()
    traces: TracesSettings = TracesSettings()
    webhooks: tuple[WebhookSettings, ...] = ()
    """Receivers of the bridge's own events; the same in all processes."""
    settler: SettlerSettings = SettlerSettings()
    log: LogSettings = LogSettings()
    fault: str | None = None
    """Crash point at which the process kills itself, for tests; obeyed only with `--allow-faults`."""

    _origins: dict[str, Origin] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources are merged before, so that each value's origin is known."""
        return (init_settings,)

    def origin(self, name: str) -> Origin:
        """Where a value came from, by its dotted name."""
        return self._origins.get(name, Origin.DEFAULT)

    def sql_url(self) -> str:
        """The database's URL; SQLite beside the other data if none was given. Raises ConfigError."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        if "?" in str(self.data_dir.absolute()):
            raise ConfigError("no database can be in a folder with a ? in its path: set another data_dir")
        return f"sqlite:///{self.data_dir.absolute() / 'bridge.db'}"

    def secret_keys(self) -> list[SecretKey]:
        """What secrets in SQL are encrypted with."""
        keys = self.security.keys
        return [] if keys is None else parse_secret_keys(keys.get_secret_value())


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A line of `config show`."""

    name: str
    value: str
    origin: Origin


def load_settings(flags: Mapping[str, Any] | None = None, file: Path | None = None) -> Settings:
    """Settings of this process. `flags`: nested like the settings, None where none was given.

    `file` must exist if named; `outbox-bridge.toml` in the working directory is read if it is there.
    Raises ConfigError, which names the setting.
    """
    sources = [
        (Origin.FILE, _read_file(file)),
        (Origin.ENVIRONMENT, _read_environment()),
        (Origin.FLAG, _without_none(flags or {})),
    ]
    merged: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for origin, values in sources:
        read = read_secret_files(values)
        origins |= {name: origin for name, _ in _leaves(read)}
        merged = _merge(merged, read)
    try:
        settings = Settings(**merged)
    except ValidationError as error:
        raise ConfigError(_describe(error, origins)) from None
    settings._origins.update(origins)  # noqa: SLF001 - its own factory
    _check_exposure(settings)
    check_options(settings.kafka, is_insecure_allowed=settings.insecure_kafka)
    _check_tls(settings.http)
    if settings.auth.certificates and settings.http.tls.client_ca is None:
        raise ConfigError("auth.certificates needs http.tls.client_ca: nobody is asked for a certificate without it")
    if settings.remoting.tls != "off" and settings.http.tls.cert is None:
        raise ConfigError("remoting.tls needs http.tls.cert and http.tls.key")
    _check_budget(settings.limits)
    names = [webhook.name for webhook in settings.webhooks]
    if len(set(names)) < len(names):
        raise ConfigError("webhooks: two have one name")
    return settings


def show_settings(settings: Settings) -> list[ShownSetting]:
    """Every value with its origin; secrets masked."""
    return [
        ShownSetting(name, _mask(name, value), settings.origin(name))
        for name, value in _leaves(settings.model_dump(mode="python"))
    ]


_SHARED = frozenset(
    {"auto_create_groups", "check_after_seconds", "transaction_id_header", "topics.prefix", "topics.queues",
     "topics.overridden",
     "limits.message_bytes", "limits.pending_transactions", "quotas.pending_of_group", "quotas.parked_of_group",
     "callbacks.allow_networks", "callbacks.prove_ownership", "settler.session_ms"}
)  # fmt: skip
_SHARED_BY_CALLED = frozenset({"insecure_no_auth", "limits.body_bytes", "limits.headers_per_message"})
_SHARED_BY_DOORS = frozenset({"remoting.key_from", "remoting.dropped_properties"})


def shared_settings(settings: Settings, *, is_called: bool, is_door: bool) -> dict[str, str]:
    """In which the processes of a bridge must not differ: what one takes another would refuse, what one masks another
    would show, and one would choose another key for a message of RocketMQ's clients than the other.

    Who may read whether the process is ready reads these: of what names people or topics there is a hash.
    """
    names = _SHARED | (_SHARED_BY_CALLED if is_called else set()) | (_SHARED_BY_DOORS if is_door else set())
    shared = {one.name: one.value for one in show_settings(settings) if one.name in names}
    if is_called:
        auth = settings.auth
        shared |= {
            "[audit] topic": settings.audit.topic,
            "auth.admin_key": _hash_secrets([auth.admin_key]),
            "auth.issuers": _hash(auth.issuers),
            "auth.certificates": _hash(sorted(auth.certificates.items())),
            "http.masks": _hash(settings.http.masks),
            "webhooks": _hash([(one.name, sorted(one.events)) for one in settings.webhooks]),
            "webhooks.url": _hash_secrets([one.url for one in settings.webhooks]),
            "webhooks.secret": _hash_secrets([one.secret for one in settings.webhooks]),
        }
    return shared


def _hash(value: object) -> str:
    return f"#{hashlib.sha256(repr(value).encode()).hexdigest()[:8]}"


def _hash_secrets(secrets: Sequence[SecretStr | None]) -> str:
    """By scrypt, since others read it: a weak secret must not be found by trying words against it."""
    if not any(secrets):  # as most often, and the hash is made to be slow
        return "none"
    opened = repr([secret and secret.get_secret_value() for secret in secrets])
    return f"#{hashlib.scrypt(opened.encode(), salt=b'outbox-bridge', n=2**14, r=8, p=1, dklen=4).hex()}"


def _check_exposure(settings: Settings) -> None:
    http = settings.http
    hosts = {
        "http.host": http.host,
        "http.metrics_host": http.metrics_host or http.host,
        "remoting.host": settings.remoting.host,
    }
    for name, host in hosts.items():
        if settings.insecure_no_auth and not is_loopback(host):
            raise ConfigError(
                f"{name} {host} is reachable from other machines, and with --insecure-no-auth nobody is asked "
                "who he is; listen on 127.0.0.1, or leave the flag out and give callers keys"
            )
    if http.metrics_host is not None and http.metrics_port is None:
        raise ConfigError("http.metrics_host needs http.metrics_port")


def _check_tls(http: HttpSettings) -> None:
    tls = http.tls
    if (tls.cert is None) != (tls.key is None):
        raise ConfigError("http.tls.cert and http.tls.key are needed together")
    if tls.cert is None and (tls.client_ca is not None or http.metrics_tls):
        raise ConfigError("http.tls.client_ca and http.metrics_tls need http.tls.cert and http.tls.key")
    if tls.client_ca is None and tls.client_auth == "required":
        raise ConfigError("http.tls.client_auth = required needs http.tls.client_ca")


def _check_budget(limits: LimitsSettings) -> None:
    if limits.body_bytes > ByteBudget(limits.in_flight_bytes).for_large:
        raise ConfigError(
            "limits.in_flight_bytes has no room for one body of limits.body_bytes: a quarter of it is kept for small "
            f"requests; set it to {limits.body_bytes * 2} or more"
        )


def _read_file(file: Path | None) -> dict[str, Any]:
    path = file or Path(SETTINGS_FILE)
    if file is None and not path.exists():
        return {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    if isinstance(values.get("kafka"), dict):
        # librdkafka's names have dots, which TOML takes for tables
        values["kafka"] = dict(_leaves(values["kafka"]))
    return values


def _read_environment() -> dict[str, Any]:
    known = {ENV_PREFIX + name.upper().replace(".", _NESTED) for name in _setting_names()}
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known | _OF_COMMANDS and not _is_link(name):
            raise ConfigError(f"unknown environment variable {name}{_nearest(name.upper(), known)}")
    try:
        return _Environment(Settings)()
    except SettingsError as error:
        raise ConfigError(f"environment: {error.__cause__ or error}") from error


class _Environment(EnvSettingsSource):
    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:  # noqa: ANN401
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            name = next((n for n in _setting_names() if n.rpartition(".")[2] == field_name), field_name)
            raise ValueError(f'setting {name} must be JSON there, as ["a", "b"] or {{"a": "b"}}') from None


def _is_link(name: str) -> bool:
    """Whether Kubernetes has set it, as it does in every pod for a Service that is called `outbox-bridge`."""
    services = [one.removesuffix(_SERVICE_HOST) for one in os.environ if one.endswith(_SERVICE_HOST)]
    return any(name.startswith(one) and _SERVICE_LINK.fullmatch(name, len(one)) for one in services)


def _setting_names() -> set[str]:
    """Dotted names of all settings; `kafka` is one."""
    return set(_names_in(Settings))


def _names_in(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _names_in(inner, f"{prefix}{name}.")
        else:
            yield prefix + name


def _nearest(name: str, known: set[str]) -> str:
    found = difflib.get_close_matches(name, sorted(known), 1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else ""


def _describe(error: ValidationError, origins: Mapping[str, Origin]) -> str:
    """The first violation, with the name of the setting and where it was set; never its value."""
    first = error.errors(include_url=False, include_input=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown setting {name}{_nearest(name, _setting_names())}"
    origin = next((origin.value for path, origin in origins.items() if name.startswith(path)), Origin.DEFAULT.value)
    return f"setting {name} ({origin}): {first['msg']}"


def _mask(name: str, value: object) -> str:
    if isinstance(value, SecretStr):
        return _MASK
    if name.startswith("kafka.") and any(word in name for word in _SECRET_WORDS):
        return _MASK
    return "" if value is None else str(value)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        lower = merged.get(name)
        both = isinstance(value, Mapping) and isinstance(lower, Mapping)
        merged[name] = _merge(lower or {}, value) if both else value
    return merged


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    pruned = {n: _without_none(v) if isinstance(v, Mapping) else v for n, v in values.items() if v is not None}
    return {name: value for name, value in pruned.items() if value != {}}
