"""`security`: keys that encrypt secrets in the database, without a bridge that runs; `key`: refusals."""

import asyncio
import json
from pathlib import Path

import pytest

from bridge.clock import SystemClock
from bridge.core.keyring import parse_secret_keys
from bridge.directory import DEFAULT_SETTINGS
from bridge.sql.directory import SqlDirectory
from bridge.sql.engine import Database, upgrade
from bridge.sql.identity import begin_seals
from tests.support.canned_http import CannedServer
from tests.unit.cli.conftest import Cli


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database of a bridge without keys: two secrets, and a URL with a query."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "bridge.db"
    monkeypatch.setenv("OUTBOX_BRIDGE_DATABASE_URL", f"sqlite:///{file}")
    asyncio.run(_fill(f"sqlite:///{file}"))
    return file


async def _fill(url: str) -> None:
    upgrade(url)
    database = Database(url)
    await database.run(lambda conn: begin_seals(conn, {}, 1))
    await SqlDirectory(database, SystemClock()).put_group("shop", DEFAULT_SETTINGS, ["https://shop/?token=canary"])
    await database.close()


def count(cli: Cli) -> dict[str | None, int]:
    """As `security show` tells."""
    return {row["key"]: row["secrets"] for row in json.loads(cli("security", "show", "-o", "json").out)}


def test_new_key_is_random_and_fit_for_the_setting(cli: Cli) -> None:
    """One line with nothing else, to be written into a file."""
    made = [cli("security", "new-key", "2026-01").out for _ in range(2)]
    assert made[0] != made[1]
    assert [parse_secret_keys(one)[0].key_id for one in made] == ["2026-01"] * 2
    refused = cli("security", "new-key", "K 1")
    assert (refused.code, refused.out) == (2, "")


@pytest.mark.usefixtures("database")
def test_secrets_get_a_key_another_one_and_none(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was done is told, and how things stand; what is left to do is nothing the second time."""
    first, second = (cli("security", "new-key", key_id).out for key_id in ("k1", "k2"))
    monkeypatch.setenv("OUTBOX_BRIDGE_SECURITY__KEYS", first)
    assert count(cli) == {None: 3}
    done = cli("security", "rewrap", "-o", "json")
    assert "1 bridge keys, 1 signing secrets, 1 endpoints" in done.err
    assert json.loads(done.out) == [{"key": "k1", "secrets": 3}]
    assert "nothing was left to do" in cli("security", "rewrap").err
    monkeypatch.setenv("OUTBOX_BRIDGE_SECURITY__KEYS", second + first)
    assert "(none)" not in cli("security", "rewrap").out
    monkeypatch.setenv("OUTBOX_BRIDGE_SECURITY__KEYS", first)
    refused = cli("security", "rewrap", "--plain")
    assert (refused.code, "k2, which is not in security.keys" in refused.err) == (2, True)
    assert "Add k2:" in refused.err
    monkeypatch.setenv("OUTBOX_BRIDGE_SECURITY__KEYS", second)
    assert "(none)" in cli("security", "rewrap", "--plain").out
    assert count(cli) == {None: 3}


@pytest.mark.usefixtures("database")
def test_without_a_key_in_the_settings_nothing_is_done(cli: Cli) -> None:
    """And it is said where keys come from."""
    refused = cli("security", "rewrap")
    assert (refused.code, "security new-key" in refused.err) == (2, True)


def test_grants_that_stand_without_a_key_are_told(cli: Cli, bridge: CannedServer) -> None:
    """They were replaced before the bridge refused a third key."""
    bridge.answer("PUT", "/v1/principals/shop", 200, {"name": "shop"})
    bridge.answer("GET", "/v1/principals", 200, {"principals": [{"name": "shop"}]})
    bridge.refuse("POST", "/v1/principals/shop/keys", 409, "too-many-keys", "shop has two keys")
    granted = cli("key", "create", "shop", "--allow", "read:*", "--url", bridge.url)
    assert (granted.code, "shop may do what was named; the key: shop has two keys" in granted.err) == (4, True)
    plain = cli("key", "create", "shop", "--url", bridge.url)
    assert (plain.code, "may do what was named" in plain.err) == (4, False)
