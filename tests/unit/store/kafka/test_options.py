"""Who has the last word on an option."""

import os
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from bridge.core.errors import ConfigError
from bridge.store.kafka.options import (
    ClientErrors,
    HeldBack,
    KafkaConfig,
    OptionFiles,
    append_options,
    find_warning,
    member_options,
    reader_options,
    transaction_options,
)

USER = {"bootstrap.servers": "nowhere:1", "acks": 0, "isolation.level": "read_uncommitted", "linger.ms": 77,
        "socket.timeout.ms": 1, "fetch.wait.max.ms": 33, "security.protocol": "SSL"}  # fmt: skip


def test_promises_do_not_give_way_to_the_user() -> None:
    """Idempotence, isolation, the guard against hidden retries of EndTxn."""
    config, errors = KafkaConfig(USER), ClientErrors()
    append = append_options(config, errors)
    assert (append["acks"], append["enable.idempotence"]) == ("all", True)
    reader = reader_options(config, errors)
    assert (reader["isolation.level"], reader["auto.offset.reset"]) == ("read_committed", "error")
    transaction = transaction_options(config, errors, "id-0", 90_000)
    assert transaction["socket.timeout.ms"] == 10_000
    waits = [f"{what}.backoff{most}.ms" for what in ("reconnect", "retry") for most in ("", ".max")]
    assert [transaction[name] for name in waits] == [4_000] * 4
    assert (transaction["transactional.id"], transaction["batch.size"]) == ("id-0", 90_000)


def test_the_rest_is_the_users_choice() -> None:
    """Waits, security and whatever else librdkafka knows."""
    config, errors = KafkaConfig(USER), ClientErrors()
    assert append_options(config, errors)["linger.ms"] == 77
    assert reader_options(config, errors)["fetch.wait.max.ms"] == 33
    assert member_options(config, errors, "group")["security.protocol"] == "SSL"


def test_member_has_a_name_only_if_asked_for() -> None:
    """Without one a member that dies is replaced after its session, with one it may come back."""
    errors = ClientErrors()
    assert "group.instance.id" not in member_options(KafkaConfig(USER), errors, "group")
    named = member_options(KafkaConfig(USER, instance_id="a"), errors, "group")
    assert named["group.instance.id"] == "a"


def test_impossible_settings_are_refused() -> None:
    """No broker to ask; calls that outlive their Kafka transaction."""
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        KafkaConfig({})
    with pytest.raises(ConfigError, match="call_timeout_ms"):
        KafkaConfig(USER, call_timeout_ms=10_000)


def test_last_complaint_is_kept() -> None:
    """The last one, and whether the client is lost."""
    errors = ClientErrors()
    errors.note(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert errors.last_error == "_ALL_BROKERS_DOWN: 1/1 brokers are down"
    assert errors.fatal is None
    errors.note(KafkaError(KafkaError._FENCED, fatal=True))
    assert errors.fatal is not None


def test_renewed_certificate_is_told_until_a_restart(tmp_path: Path) -> None:
    """The clients go on with what they have read, until brokers refuse it."""
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    for path in (cert, key):
        path.touch()
    options = {"ssl.certificate.location": str(cert), "ssl.key.location": str(key), "ssl.ca.location": "probe"}
    files = OptionFiles(options)
    assert find_warning(HeldBack(), files) == ""
    os.utime(cert, (1, 1))
    key.unlink()  # between two files of a renewal
    told = find_warning(HeldBack(), files)
    assert told.startswith(f"{cert}: renewed since this process began")
    assert find_warning(HeldBack(), OptionFiles(options)) == ""
