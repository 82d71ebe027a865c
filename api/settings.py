"""Settings: defaults, then `outbox-bridge.toml`, then environment `OUTBOX_BRIDGE_*`, then flags.

Read once, at the edge. A setting nobody knows is an error that names the nearest one: a typing error would
otherwise be a default in production.
"""

import difflib
import ipaddress
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from api.issuer_documents import is_safe
from api.kafka_options import KafkaValue, check_options
from api.log_setup import LogFormat, LogLevel
from api.secret_files import read_secret_files
from api.web.guard import is_loopback
from api.web.limits import ByteBudget
from bridge.core.access_key import read_key_id
from bridge.core.errors import ConfigError
from bridge.core.grants import PRINCIPAL_NAME
from bridge.core.secret_key import SecretKey, parse_secret_keys
from bridge.service.issuers import ALGORITHMS, USUAL_ALGORITHMS

SETTINGS_FILE = "outbox-bridge.toml"
ENV_PREFIX = "OUTBOX_BRIDGE_"
_NESTED = "__"
# which bridge the command line talks to, who does, and how
_OF_COMMANDS = {
    f"{ENV_PREFIX}{name}" for name in ("URL", "KEY", "KEY_FILE", "CA_FILE", "CLIENT_CERT_FILE", "CLIENT_KEY_FILE")
}
_SECRET_WORDS = ("password", "secret", "sasl.jaas", "key.pem", "oauthbearer.config", "token")
_MASK = "********"

Port = Annotated[int, Field(ge=0, le=65_535)]
# as in a URL, in lower case as browsers send it; without a port: any
HostName = Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:]{2,39}\])(:[0-9]{1,5})?$")]
PrincipalName = Annotated[str, Field(pattern=PRINCIPAL_NAME)]


def _local_kafka() -> dict[str, KafkaValue]:
    return {"bootstrap.servers": "127.0.0.1:9092"}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TopicsSettings(_Section):
    """The internal topics: `prefix` before their names, group and transactional ids; how many queues.

    `overridden`: kinds of their faults that are taken as they are.
    """

    prefix: Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9._-]*$")] = ""
    queues: Annotated[int, Field(ge=1, le=1_024)] = 4
    overridden: tuple[str, ...] = ()


class TlsSettings(_Section):
    """PEM files, read anew when they change. `client_ca`: who signs certificates of clients; `client_auth`: whether
    every client must show one."""

    cert: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    client_auth: Literal["optional", "required"] = "optional"


class HttpSettings(_Section):
    """Where and how the API listens. `allowed_hosts`: names under which it is called besides its own address.

    `metrics_port`: health and metrics for whoever reaches it, and metrics nowhere else; `metrics_host`: `host` if none.
    """

    host: str = "127.0.0.1"
    port: Port = 8780
    tls: TlsSettings = TlsSettings()
    metrics_port: Port | None = None
    metrics_host: str | None = None
    metrics_tls: bool = False
    allowed_hosts: tuple[HostName, ...] = ()
    reuse_port: bool = False
    backlog: Annotated[int, Field(ge=1, le=65_535)] = 2_048
    keep_alive_seconds: Annotated[int, Field(ge=1, le=3_600)] = 30
    receive_seconds: Annotated[float, Field(ge=0.1, le=600)] = 10
    drain_seconds: Annotated[int, Field(ge=0, le=25)] = 10


class IssuerSettings(_Section):
    """An OIDC issuer whose tokens are believed; `jwks_url` is found by its discovery document unless it is given.

    `claim`: which one names the principal; `prefix`: put before it. `max_life_seconds`: of tokens.
    """

    issuer: str
    audience: Annotated[str, Field(min_length=1)]
    jwks_url: str | None = None
    algorithms: Annotated[tuple[str, ...], Field(min_length=1)] = USUAL_ALGORITHMS
    claim: Annotated[str, Field(min_length=1)] = "sub"
    prefix: str = ""
    max_life_seconds: Annotated[int, Field(ge=60, le=86_400)] = 3_600

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


class AuthSettings(_Section):
    """`admin_key`: a key that may do everything, to make the others with. `outbox-bridge key new` makes one; it is in
    no table, and ends when it is taken out of the settings. `issuers`: of tokens (OIDC). `certificates`: whom the names
    in certificates of clients mean, each as `DNS:name` or `URI:text`."""

    admin_key: SecretStr | None = None
    admin_key_file: Path | None = None
    issuers: tuple[IssuerSettings, ...] = ()
    certificates: dict[str, PrincipalName] = Field(default_factory=dict)

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


class SecuritySettings(_Section):
    """`keys`: what secrets in SQL are encrypted with, the one to use first; `id:key`, with blanks or commas between."""

    keys: SecretStr | None = None
    keys_file: Path | None = None

    @field_validator("keys")
    @classmethod
    def _are_keys(cls, keys: SecretStr | None) -> SecretStr | None:
        if keys is not None:
            parse_secret_keys(keys.get_secret_value())
        return keys


class QuotasSettings(_Section):
    """What one principal may ask of one api process, and how much one producer group may leave pending."""

    requests_per_second: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    bytes_per_second: Annotated[int, Field(ge=1_024)] | None = None
    pending_of_group: Annotated[int, Field(ge=1)] | None = None


class LimitsSettings(_Section):
    """How much is taken on."""

    message_bytes: Annotated[int, Field(ge=1, le=64 * 1024 * 1024)] = 1024 * 1024
    body_bytes: Annotated[int, Field(ge=1_024, le=256 * 1024 * 1024)] = 8 * 1024 * 1024
    headers_per_message: Annotated[int, Field(ge=0, le=1_000)] = 64
    requests_in_flight: Annotated[int, Field(ge=1, le=100_000)] = 2_000
    in_flight_bytes: Annotated[int, Field(ge=1024 * 1024)] = 256 * 1024 * 1024
    connections: Annotated[int, Field(ge=1, le=1_000_000)] = 4_000
    pending_transactions: Annotated[int, Field(ge=1)] = 2_000_000


class CallbacksSettings(_Section):
    """`allow_networks`: may be called besides public ones; http and any port are allowed in them. `prove_ownership`:
    which endpoints must answer a signed challenge before they are taken; `remote`: those beyond loopback."""

    allow_networks: tuple[str, ...] = ()
    prove_ownership: Literal["remote", "all", "none"] = "remote"

    @field_validator("allow_networks")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ipaddress.ip_network(network)
        return networks


class SettlerSettings(_Section):
    """How soon another settler takes over from a killed one, how far back a successor must read the journal, and how
    many bytes of undecided bodies each queue keeps in memory; the others are read again when they are needed."""

    session_ms: Annotated[int, Field(ge=1_000, le=60_000)] = 6_000
    put_back_records: Annotated[int, Field(ge=1)] = 100_000
    held_body_bytes: Annotated[int, Field(ge=0)] = 67_108_864


class LogSettings(_Section):
    """`auto`: JSON when piped, text on a terminal."""

    level: LogLevel = "info"
    format: LogFormat = "auto"


class Origin(Enum):
    """Where a value came from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


class Settings(BaseSettings):
    """All settings of a process. Made by `load_settings`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter=_NESTED, extra="forbid", frozen=True, case_sensitive=False
    )

    kafka: dict[str, KafkaValue] = Field(default_factory=_local_kafka)
    database_url: SecretStr | None = None
    database_url_file: Path | None = None
    data_dir: Path = Path(".outbox-bridge")
    insecure_no_auth: bool = False
    insecure_kafka: bool = False
    auto_create_groups: bool = False  # else a typing error is a group that nobody is asked about
    transaction_id_header: bool = True
    topics: TopicsSettings = TopicsSettings()
    http: HttpSettings = HttpSettings()
    auth: AuthSettings = AuthSettings()
    security: SecuritySettings = SecuritySettings()
    limits: LimitsSettings = LimitsSettings()
    quotas: QuotasSettings = QuotasSettings()
    callbacks: CallbacksSettings = CallbacksSettings()
    settler: SettlerSettings = SettlerSettings()
    log: LogSettings = LogSettings()
    fault: str | None = None

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
        """The database's URL; SQLite beside the other data if none was given."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
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
    _check_budget(settings.limits)
    return settings


def show_settings(settings: Settings) -> list[ShownSetting]:
    """Every value with its origin; secrets masked."""
    return [
        ShownSetting(name, _mask(name, value), settings.origin(name))
        for name, value in _leaves(settings.model_dump(mode="python"))
    ]


def _check_exposure(settings: Settings) -> None:
    http = settings.http
    for name, host in (("host", http.host), ("metrics_host", http.metrics_host or http.host)):
        if settings.insecure_no_auth and not is_loopback(host):
            raise ConfigError(
                f"http.{name} {host} is reachable from other machines, and with --insecure-no-auth nobody is asked "
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
    known = _environment_names()
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known | _OF_COMMANDS:
            raise ConfigError(f"unknown environment variable {name}{_nearest(name.upper(), known)}")
    try:
        return EnvSettingsSource(Settings)()
    except SettingsError as error:
        raise ConfigError(f"environment: {error}") from error


def _environment_names() -> set[str]:
    return {ENV_PREFIX + name.upper().replace(".", _NESTED) for name in _setting_names()}


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
