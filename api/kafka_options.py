"""The `[kafka]` table: what must not be said of encryption by accident."""

from collections.abc import Mapping

from api.own_addresses import parse_servers
from api.web.guard import is_loopback
from bridge.core.errors import ConfigError

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
