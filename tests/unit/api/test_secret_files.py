"""Secrets from files: each secret setting has its `_file`."""

from pathlib import Path

import pytest

from api.settings import Origin, load_settings, show_settings
from bridge.core.errors import ConfigError
from bridge.core.keyring import RANDOM_BYTES, make_key_text
from outbox.client.config import HttpConfig
from outbox.client.errors import OutboxConfigError

ADMIN = make_key_text(bytes(RANDOM_BYTES))
KEYS = f"k1:{'A' * 43}"
SECRETS = {"DATABASE_URL": "postgresql://b:s3cret@db/b", "AUTH__ADMIN_KEY": ADMIN, "SECURITY__KEYS": KEYS}


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the machine reach a test."""
    monkeypatch.chdir(tmp_path)
    for name, secret in SECRETS.items():
        (tmp_path / name).write_text(f"{secret}\n")


def test_environment_names_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in them counts as said there, and is shown no more than if it were."""
    for name in SECRETS:
        monkeypatch.setenv(f"OUTBOX_BRIDGE_{name}_FILE", name)
    settings = load_settings()
    assert settings.sql_url() == SECRETS["DATABASE_URL"]
    assert settings.auth.admin_key is not None
    assert settings.auth.admin_key.get_secret_value() == ADMIN
    assert [key.key_id for key in settings.secret_keys()] == ["k1"]
    shown = {line.name: (line.value, line.origin) for line in show_settings(settings)}
    for name in ("database_url", "auth.admin_key", "security.keys"):
        assert shown[name] == ("********", Origin.ENVIRONMENT)


def test_file_names_the_files_and_the_environment_overrides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for every other setting; several keys may have a line each."""
    Path("keys").write_text(f"k2:{'B' * 43}\n{KEYS}\n")
    Path("outbox-bridge.toml").write_text(
        'database_url_file = "DATABASE_URL"\n[security]\nkeys_file = "keys"\n[auth]\nadmin_key_file = "nowhere"\n'
    )
    with pytest.raises(ConfigError, match=r"setting auth\.admin_key_file: cannot read nowhere"):
        load_settings()
    Path("nowhere").write_text(ADMIN)
    monkeypatch.setenv("OUTBOX_BRIDGE_DATABASE_URL", "sqlite:///other.db")
    settings = load_settings()
    assert settings.sql_url() == "sqlite:///other.db"
    assert [key.key_id for key in settings.secret_keys()] == ["k2", "k1"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("AUTH__ADMIN_KEY", "s3cret", r"setting auth\.admin_key \(environment\)"),
        ("SECURITY__KEYS", "k1:s3cret", r"setting security\.keys \(environment\): .*security new-key"),
    ],
)
def test_wrong_content_is_an_error_that_does_not_show_it(
    name: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which setting it is, and where it was set."""
    Path(name).write_text(text)
    monkeypatch.setenv(f"OUTBOX_BRIDGE_{name}_FILE", name)
    with pytest.raises(ConfigError, match=message) as refused:
        load_settings()
    assert "s3cret" not in str(refused.value)


def test_secret_and_its_file_are_not_both_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could tell which one counts."""
    monkeypatch.setenv("OUTBOX_BRIDGE_SECURITY__KEYS", KEYS)
    monkeypatch.setenv("OUTBOX_BRIDGE_SECURITY__KEYS_FILE", "SECURITY__KEYS")
    with pytest.raises(ConfigError, match=r"both security\.keys and security\.keys_file are set"):
        load_settings()


def test_sdk_and_commands_read_their_key_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable itself counts first; a bridge in the same environment takes no offence."""
    monkeypatch.delenv("OUTBOX_BRIDGE_KEY", raising=False)
    monkeypatch.setenv("OUTBOX_BRIDGE_KEY_FILE", "AUTH__ADMIN_KEY")
    assert HttpConfig().key == ADMIN
    assert HttpConfig().proof == {"Authorization": f"Bearer {ADMIN}"}
    assert load_settings().auth.admin_key is None
    monkeypatch.setenv("OUTBOX_BRIDGE_KEY_FILE", "no-such-file")
    with pytest.raises(OutboxConfigError, match="OUTBOX_BRIDGE_KEY_FILE: cannot read no-such-file"):
        HttpConfig()
    monkeypatch.setenv("OUTBOX_BRIDGE_KEY", "obk_other")
    assert HttpConfig().key == "obk_other"
