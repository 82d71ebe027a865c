"""The `[kafka]` table: secrets from files, and nothing unverified or in clear by accident."""

from pathlib import Path

import pytest

from api.settings import find_open_servers, load_settings, show_settings
from bridge.core.errors import ConfigError


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the machine reach a test."""
    monkeypatch.chdir(tmp_path)


def test_password_is_read_from_a_file(tmp_path: Path) -> None:
    """As orchestrators mount secrets; the end of the line is no part of it, and it is never shown."""
    (tmp_path / "password").write_text(" s3cret \n")
    settings = load_settings({"kafka": {"sasl.password_file": str(tmp_path / "password")}})
    assert settings.kafka["sasl.password"] == " s3cret "
    assert "s3cret" not in repr(show_settings(settings))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sasl.password_file": "nowhere"}, "setting kafka.sasl.password_file: cannot read nowhere"),
        ({"sasl.password_file": "nowhere", "sasl.password": "x"}, "both kafka.sasl.password and"),
        ({"ssl.endpoint.identification.algorithm": "None"}, "lets anybody on the way pass for Kafka"),
        ({"enable.ssl.certificate.verification": False}, "enable.ssl.certificate.verification = False"),
        ({"enable.ssl.certificate.verification": "f"}, "insecure_kafka"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, str | bool], message: str) -> None:
    """With the setting's name and the remedy."""
    with pytest.raises(ConfigError, match=message):
        load_settings({"kafka": options})


def test_certificates_go_unverified_only_on_purpose() -> None:
    """There is a word for it."""
    options = {"ssl.endpoint.identification.algorithm": "none", "enable.ssl.certificate.verification": False}
    assert load_settings({"kafka": options, "insecure_kafka": True}).insecure_kafka
    assert load_settings({"kafka": {"ssl.endpoint.identification.algorithm": "https"}})


@pytest.mark.parametrize(
    ("options", "servers"),
    [
        ({"bootstrap.servers": "127.0.0.1:9092,[::1]:9092,localhost:9092"}, []),
        ({"bootstrap.servers": "kafka:9092,127.0.0.1:9092"}, ["kafka:9092"]),
        ({"bootstrap.servers": "kafka:9092", "security.protocol": "SASL_PLAINTEXT"}, ["kafka:9092"]),
        ({"bootstrap.servers": "kafka:9092", "security.protocol": "sasl_ssl"}, []),
        ({"bootstrap.servers": "kafka:9092", "security.protocol": "SSL"}, []),
    ],
)
def test_servers_in_clear_beyond_loopback_are_told(options: dict[str, str], servers: list[str]) -> None:
    """What goes there can be read by whoever is on the way."""
    assert find_open_servers(options) == servers
