"""What a user may say of Kafka's clients; nothing is passed over without a word."""

import time
from typing import Any

import pytest

from bridge.core.errors import ConfigError
from bridge.store.kafka import options
from bridge.store.kafka.options import OWNED, ClientErrors, KafkaConfig, check_user_options

SERVERS = {"bootstrap.servers": "127.0.0.1:9"}


@pytest.mark.parametrize("name", sorted(OWNED))
def test_what_the_bridge_owns_is_refused(name: str) -> None:
    """It would be overridden in one client or another, and its user never know."""
    with pytest.raises(ConfigError, match=f"kafka.{name} is the bridge's own"):
        check_user_options({**SERVERS, name: "1"})


def make_plain(config: KafkaConfig) -> list[dict[str, Any]]:
    """Of every client but the transactional producer."""
    errors = ClientErrors()
    return [
        options.append_options(config, errors),
        options.reader_options(config, errors),
        options.look_up_options(config, errors),
        options.member_options(config, errors, "group"),
        options.group_options(config, errors, "group"),
        options.admin_options(config, errors),
    ]


def test_each_option_that_a_client_fixes_is_owned() -> None:
    """Of those that only a transactional producer fixes, the others keep the user's."""
    given = {**SERVERS, "client.id": "user"}
    plain = KafkaConfig(given, instance_id="a")
    merged = [*make_plain(plain), options.transaction_options(plain, ClientErrors(), "id", 1_000)]
    names = {name for made in merged for name in made} - {"error_cb", "throttle_cb", "logger"}
    said = KafkaConfig({**dict.fromkeys(names, "user"), **given}, instance_id="a")
    again = make_plain(said)
    fixed = {name for made in again for name, value in made.items() if value != "user"} - {
        "error_cb",
        "throttle_cb",
        "logger",
    }
    assert fixed - {"bootstrap.servers"} <= OWNED


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"linger.mss": 1}, 'No such configuration property: "linger.mss"'),
        ({"security.protocol": "SSLL"}, 'Invalid value "SSLL" for configuration property "security.protocol"'),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere"}, "ssl.ca.location"),
    ],
)
def test_what_librdkafka_cannot_use_is_refused_in_its_words(given: dict[str, str], message: str) -> None:
    """One line, before any client is made."""
    with pytest.raises(ConfigError) as refused:
        check_user_options({**SERVERS, **given})
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_can_be_used_is_taken_without_a_connection() -> None:
    """Of every kind of client."""
    began_s = time.monotonic()
    check_user_options({**SERVERS, "linger.ms": 3, "fetch.wait.max.ms": 50, "socket.timeout.ms": 5_000})
    assert time.monotonic() - began_s < 20
