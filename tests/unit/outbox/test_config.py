"""Settings are checked when they are made."""

import asyncio
import time
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from outbox import AsyncBridge, Bridge, BridgeConfig, HttpConfig, Message, Misuse, OutboxConfigError
from outbox.client import config
from outbox.client.config import check_url, renewed_proof
from outbox.hand_over import HttpHandOver, OutboxRow, PublishStatus
from tests.support.authority import Authority
from tests.support.canned_http import canned_server
from tests.support.sdk_twins import AwaitedSession, Session


@pytest.mark.parametrize(
    "setting",
    [
        {"call_timeout_s": 0},
        {"call_timeout_s": float("inf")},
        {"call_timeout_s": "15"},
        {"close_timeout_s": -1},
        {"max_in_flight": 0},
        {"max_batch_items": 1_001},
        {"max_batch_bytes": 0},
        {"max_waiting": True},
        {"check_threads": 0},
    ],
)
def test_setting_outside_its_bounds_is_refused(setting: dict[str, Any]) -> None:
    """By its name."""
    with pytest.raises(OutboxConfigError, match=next(iter(setting))):
        BridgeConfig(**setting)


@pytest.mark.parametrize("setting", [{"connect_timeout_s": 0}, {"slack_s": None}, {"max_connections": 0}])
def test_setting_of_connections_outside_its_bounds_is_refused(setting: dict[str, Any]) -> None:
    """By its name."""
    with pytest.raises(OutboxConfigError, match=next(iter(setting))):
        HttpConfig(**setting)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "bridge:8780",
        "ftp://bridge",
        "http://",
        "http://user:secret@bridge",
        "http://bridge?x=1",
        "http://b#f",
        "http://bridge:99999",
        "http://bridge:0",
        "http://bridge:http",
        "http://[::1",
        "http://bri..dge",
        "http://" + "ä" * 64,
        "http://bri\tdge",
    ],
)
def test_address_that_cannot_be_is_refused(url: str) -> None:
    """Before the first call, and without its credential in the error."""
    with pytest.raises(OutboxConfigError) as refused:
        Bridge(url, "shop")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["ca_file", "client_cert_file"])
@pytest.mark.parametrize("written", [None, b"", b"no certificate"])
def test_certificate_that_cannot_be_used_is_named(tmp_path: Path, name: str, written: bytes | None) -> None:
    """Also one of the environment, where nobody has seen a line of code."""
    path = tmp_path / "file.pem"
    if written is not None:
        path.write_bytes(written)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"OUTBOX_BRIDGE_{name.upper()}", str(path))
        config = HttpConfig()
    session, settings = Session(), BridgeConfig(http=config)
    with (
        Bridge("https://bridge.invalid", "shop", record=Session(), config=settings) as bridge,
        pytest.raises(OutboxConfigError, match=f"{name} {path}"),
        bridge.transaction(session) as transaction,
    ):
        transaction.send("orders", value="never")
    assert "commit" not in session.called


def test_client_key_is_read_from_its_certificates_file_too(tmp_path: Path) -> None:
    """Where it stands there; one that belongs to no certificate is an error."""
    authority = Authority(tmp_path)
    files = authority.issue("orders")
    both = tmp_path / "both.pem"
    both.write_bytes(files.key.read_bytes() + files.cert.read_bytes())
    HttpConfig(client_cert_file=str(both)).make_tls()
    with pytest.raises(OutboxConfigError, match="client_cert_file"):
        HttpConfig(client_key_file=str(files.key))
    other = authority.issue("orders", at="other")
    with pytest.raises(OutboxConfigError, match=r"other\.key cannot be used: KEY_VALUES_MISMATCH"):
        HttpConfig(client_cert_file=str(files.cert), client_key_file=str(other.key)).make_tls()


def test_address_may_have_a_path() -> None:
    """Behind a gateway."""
    assert check_url("https://gateway.example/bridge/") == "https://gateway.example/bridge"


def test_address_may_come_with_the_end_of_its_line() -> None:
    """As out of a file: SDK and pull workers took it, and the relay failed for ever, though its rows were leased."""
    with canned_server() as bridge:
        bridge.answer("POST", "/v1/messages", 200, {"transaction_id": "t1", "state": "COMMITTED"})
        with closing(HttpHandOver(f" {bridge.url}/\n", "shop")) as relay:
            (result,) = relay.publish([OutboxRow(1, "1", "1", "orders")])
    assert result.fate is PublishStatus.PUBLISHED


def test_credential_is_not_shown() -> None:
    """Settings get into logs."""
    assert "secret" not in repr(BridgeConfig(http=HttpConfig(headers={"Authorization": "secret"})))


def test_credential_goes_with_every_request() -> None:
    """Also with the repeats."""
    config = BridgeConfig(http=HttpConfig(headers={"Authorization": "Bearer secret"}))
    with canned_server() as bridge, Bridge(bridge.url, "shop", config=config) as face:
        bridge.answer("POST", "/v1/messages", 502, b"page")
        bridge.answer("POST", "/v1/messages", 200, {"transaction_id": "t1", "state": "COMMITTED"})
        face.publish(Message("orders"))
    assert [asked.headers["Authorization"] for asked in bridge.asked] == ["Bearer secret"] * 2


class Way(StrEnum):
    """By which a call goes to the bridge."""

    THREADS = "threads"
    LOOP = "loop"
    RELAY = "relay"


@pytest.mark.parametrize("way", Way)
async def test_key_of_a_file_is_the_one_that_is_in_it_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    """It is rotated while a service runs: the old one is revoked, and all that it sent was refused until a restart.

    What cannot be a key, as a file that is being written, changes nothing.
    """
    monkeypatch.setattr(config, "_LOOK_EACH_S", 0.0)
    path = tmp_path / "key"
    monkeypatch.setenv("OUTBOX_BRIDGE_KEY_FILE", str(path))
    path.write_text("obk_first\n")
    with canned_server(keeps_connections=True) as bridge:
        bridge.answer("POST", "/v1/messages", 200, {"transaction_id": "t1", "state": "COMMITTED"})
        async with AsyncBridge(bridge.url, "shop") as loop:
            with Bridge(bridge.url, "shop") as threads, closing(HttpHandOver(bridge.url, "shop")) as relay:
                for written in ("obk_first", "obk_second", "", "no key", None, "obk_third"):
                    if written is None:
                        path.unlink()
                    else:
                        path.write_text(written)
                    match way:
                        case Way.THREADS:
                            threads.publish(Message("orders"))
                        case Way.LOOP:
                            await loop.publish(Message("orders"))
                        case Way.RELAY:
                            relay.publish([OutboxRow(1, "1", "1", "orders")])
    sent = [asked.headers["Authorization"].removeprefix("Bearer obk_") for asked in bridge.asked]
    assert sent == ["first", "second", "second", "second", "second", "third"]


def test_key_that_was_given_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the environment is for those that nothing else was said to."""
    path = tmp_path / "key"
    path.write_text("obk_of_the_file")
    monkeypatch.setenv("OUTBOX_BRIDGE_KEY_FILE", str(path))
    given = renewed_proof(HttpConfig(key="obk_given"))
    monkeypatch.setenv("OUTBOX_BRIDGE_KEY", "obk_of_the_variable")
    variable = renewed_proof(HttpConfig())
    for known, key in ((given, "obk_given"), (variable, "obk_of_the_variable")):
        known.look(time.monotonic())
        assert known.current == {"Authorization": f"Bearer {key}"}


def test_session_of_asyncio_needs_the_other_face() -> None:
    """Its commit would only make a coroutine, and the messages would be published without it."""
    with pytest.raises(Misuse):
        Bridge("http://127.0.0.1:9", "shop", record=Session()).transaction(AwaitedSession())  # type: ignore[arg-type]


async def test_face_in_another_loop_says_so() -> None:
    """Connections belong to the loop in which they were made."""
    face = AsyncBridge("http://127.0.0.1:9", "shop")
    face._link._find_caller()

    async def use() -> None:
        face._link._find_caller()

    with pytest.raises(Misuse):
        await asyncio.to_thread(lambda: asyncio.run(use()))
    await face.close()


def test_face_goes_on_in_a_new_loop_when_the_old_one_is_closed() -> None:
    """One program may run several loops, one after the other."""
    face = AsyncBridge("http://127.0.0.1:9", "shop")

    async def use() -> object:
        return face._link._find_caller()

    assert asyncio.run(use()) is not asyncio.run(use())
