"""Settings: where they come from, which win, and that nothing misspelt passes."""

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from api.settings import SETTINGS_FILE, Origin, load_settings, shared_settings, show_settings
from bridge.core.errors import ConfigError
from bridge.core.keyring import make_key_text
from checker.endpoint_guard import is_loopback


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the machine reach a test."""
    monkeypatch.chdir(tmp_path)


def write(text: str) -> None:
    """The settings file of the working directory."""
    Path(SETTINGS_FILE).write_text(text, encoding="utf-8")


def test_defaults_are_a_bridge_on_this_machine(tmp_path: Path) -> None:
    """Loopback, SQLite beside the data, Kafka where `dev` puts it."""
    settings = load_settings()
    assert (settings.http.host, settings.http.port) == ("127.0.0.1", 8780)
    assert settings.sql_url() == f"sqlite:///{tmp_path}/.outbox-bridge/bridge.db"
    assert settings.kafka == {"bootstrap.servers": "127.0.0.1:9092"}
    assert settings.limits.body_bytes == 8 * 1024 * 1024
    assert not settings.auto_create_groups
    assert settings.origin("http.port") is Origin.DEFAULT


def test_folder_that_no_url_can_name_is_refused() -> None:
    """The database would be made beside it."""
    write('data_dir = "what?"')
    with pytest.raises(ConfigError, match="data_dir"):
        load_settings().sql_url()


def test_flags_win_over_environment_over_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Value by value, not section by section."""
    write("auto_create_groups = true\n[http]\nport = 1\nbacklog = 1\nkeep_alive_seconds = 1\n")
    monkeypatch.setenv("OUTBOX_BRIDGE_HTTP__PORT", "2")
    monkeypatch.setenv("OUTBOX_BRIDGE_HTTP__BACKLOG", "2")
    settings = load_settings({"http": {"port": 3, "host": None}, "data_dir": None})
    assert (settings.http.port, settings.http.backlog, settings.http.keep_alive_seconds) == (3, 2, 1)
    assert settings.auto_create_groups
    origins = [settings.origin(f"http.{name}") for name in ("port", "backlog", "keep_alive_seconds", "host")]
    assert origins == [Origin.FLAG, Origin.ENVIRONMENT, Origin.FILE, Origin.DEFAULT]


def test_kafka_takes_the_names_of_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quoted or as tables in TOML, as JSON in the environment; merged name by name."""
    write('[kafka]\nbootstrap.servers = "a:1"\n"security.protocol" = "SSL"\nsocket.keepalive.enable = true\n')
    monkeypatch.setenv("OUTBOX_BRIDGE_KAFKA", '{"bootstrap.servers": "b:2", "socket.timeout.ms": 100}')
    assert load_settings().kafka == {
        "bootstrap.servers": "b:2",
        "security.protocol": "SSL",
        "socket.keepalive.enable": True,
        "socket.timeout.ms": 100,
    }


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("OUTBOX_BRIDGE_HTTP__PROT", "1", "did you mean OUTBOX_BRIDGE_HTTP__PORT"),
        ("OUTBOX_BRIDGE_KAFKA__ACKS", "1", "unknown environment variable OUTBOX_BRIDGE_KAFKA__ACKS"),
        ("outbox_bridge_colour", "1", "unknown environment variable"),
        ("OUTBOX_BRIDGE_HTTP", "{}", "unknown environment variable"),
        ("OUTBOX_BRIDGE_HTTP__PORT", "many", "setting http.port"),
        ("OUTBOX_BRIDGE_HTTP__PORT", "70000", "setting http.port"),
        ("OUTBOX_BRIDGE_TOPICS__QUEUES", "0", "setting topics.queues"),
        ("OUTBOX_BRIDGE_TOPICS__PREFIX", "a b", "setting topics.prefix"),
        ("OUTBOX_BRIDGE_KAFKA", "{", "kafka"),
        ("OUTBOX_BRIDGE_CALLBACKS__ALLOW_NETWORKS", '["127.0.0.1/8"]', "setting callbacks.allow_networks"),
        ("OUTBOX_BRIDGE_CALLBACKS__ALLOW_NETWORKS", "10.0.0.0/8", "callbacks.allow_networks must be JSON"),
        ("OUTBOX_BRIDGE_LOG__LEVEL", "loud", "setting log.level"),
    ],
)
def test_environment_is_strict(name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown names and bad values are errors that name them."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        load_settings()


@pytest.mark.parametrize("quota", ["PENDING_OF_GROUP", "PARKED_OF_GROUP"])
def test_quota_that_sql_cannot_compare_with_is_refused(quota: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing pending would be counted, for the other limits neither."""
    monkeypatch.setenv(f"OUTBOX_BRIDGE_QUOTAS__{quota}", str(2**63))
    with pytest.raises(ConfigError, match=f"quotas.{quota.lower()}"):
        load_settings()


def test_variable_of_the_command_line_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which bridge commands talk to."""
    monkeypatch.setenv("OUTBOX_BRIDGE_URL", "http://127.0.0.1:1")
    load_settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "unknown setting prot"),
        ("[http]\nprot = 1", "unknown setting http.prot; did you mean http.port"),
        ("[htp]\nport = 1", "unknown setting htp"),
        ("[http]\nport = 'x'", r"setting http.port \(file\)"),
        ("[http", "is not TOML"),
        ("kafka = 3", "setting kafka"),
    ],
)
def test_file_is_strict(text: str, message: str) -> None:
    """As the environment is."""
    write(text)
    with pytest.raises(ConfigError, match=message):
        load_settings()


def test_named_file_must_exist(tmp_path: Path) -> None:
    """The one in the working directory need not."""
    with pytest.raises(ConfigError, match="cannot read"):
        load_settings(file=tmp_path / "missing.toml")


@pytest.mark.parametrize(
    ("flags", "is_fine"),
    [
        ({"http": {"host": "127.0.0.1"}}, True),
        ({"http": {"host": "::1"}}, True),
        ({"http": {"host": "localhost"}}, True),
        ({"http": {"host": "0.0.0.0"}}, False),
        ({"http": {"host": "::"}}, False),
        ({"http": {"host": "bridge.example.com"}}, False),
        ({"http": {"metrics_port": 8790}}, True),
        ({"http": {"metrics_port": 8790, "metrics_host": "127.0.0.1"}}, True),
        ({"http": {"metrics_port": 8790, "metrics_host": "0.0.0.0"}}, False),
    ],
)
def test_only_loopback_without_authentication(flags: dict[str, Any], is_fine: bool) -> None:
    """Whatever the flag says; with keys, any address is fine."""
    load_settings(flags)
    flags = {**flags, "insecure_no_auth": True}
    if is_fine:
        load_settings(flags)
        return
    with pytest.raises(ConfigError, match="insecure-no-auth"):
        load_settings(flags)
    assert not all(is_loopback(flags["http"][name]) for name in ("host", "metrics_host") if name in flags["http"])


@pytest.mark.parametrize(
    ("http", "named"),
    [
        ({"tls": {"cert": "a.pem"}}, "http.tls.key"),
        ({"tls": {"key": "a.key"}}, "http.tls.cert"),
        ({"tls": {"client_ca": "ca.pem"}}, "http.tls.client_ca"),
        ({"metrics_tls": True}, "http.metrics_tls"),
        ({"tls": {"cert": "a.pem", "key": "a.key", "client_auth": "required"}}, "http.tls.client_auth"),
        ({"metrics_host": "10.0.0.1"}, "http.metrics_host"),
    ],
)
def test_settings_of_tls_belong_together(http: dict[str, Any], named: str) -> None:
    """Half of them would leave a port in clear, or open."""
    with pytest.raises(ConfigError, match=named):
        load_settings({"http": http})


ASKING = {"tls": {"cert": "a.pem", "key": "a.key", "client_ca": "ca.pem"}}


def test_names_in_certificates_mean_principals() -> None:
    """Names of hosts in any case, URIs as they are."""
    given = {"DNS:Orders.Shop.svc": "shop", "DNS:orders.shop.svc": "shop", "URI:spiffe://Prod/orders": "shop"}
    settings = load_settings({"http": ASKING, "auth": {"certificates": given}})
    assert settings.auth.certificates == {"DNS:orders.shop.svc": "shop", "URI:spiffe://Prod/orders": "shop"}


@pytest.mark.parametrize(
    ("http", "given", "words"),
    [
        (ASKING, {"orders.shop.svc": "shop"}, "neither DNS:name nor URI:text"),
        (ASKING, {"CN:shop": "shop"}, "neither DNS:name nor URI:text"),
        (ASKING, {"DNS:": "shop"}, "neither DNS:name nor URI:text"),
        (ASKING, {"DNS:a.svc": "shop", "DNS:A.svc": "baker"}, "there twice"),
        (ASKING, {"DNS:a.svc": "no name"}, "auth.certificates"),
        ({}, {"DNS:a.svc": "shop"}, "http.tls.client_ca"),
    ],
)
def test_names_in_certificates_that_mean_nothing_are_errors(
    http: dict[str, Any], given: dict[str, str], words: str
) -> None:
    """A typing error would lock a service out, or let another one in."""
    with pytest.raises(ConfigError, match=words):
        load_settings({"http": http, "auth": {"certificates": given}})


def test_secrets_are_masked_and_never_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `config show`, in messages, in the object itself."""
    monkeypatch.setenv("OUTBOX_BRIDGE_DATABASE_URL", "postgresql://bridge:geheim@db/bridge")
    monkeypatch.setenv("OUTBOX_BRIDGE_KAFKA", '{"sasl.password": "geheim", "sasl.username": "bridge"}')
    settings = load_settings()
    lines = {line.name: (line.value, line.origin) for line in show_settings(settings)}
    assert lines["kafka.sasl.password"] == ("********", Origin.ENVIRONMENT)
    assert lines["kafka.sasl.username"] == ("bridge", Origin.ENVIRONMENT)
    assert lines["database_url"] == ("********", Origin.ENVIRONMENT)
    assert lines["http.port"] == ("8780", Origin.DEFAULT)
    assert "geheim" not in repr(lines)
    assert settings.sql_url() == "postgresql://bridge:geheim@db/bridge"
    monkeypatch.setenv("OUTBOX_BRIDGE_KAFKA", '{"sasl.password": ["geheim"]}')
    with pytest.raises(ConfigError) as error:
        load_settings()
    assert "geheim" not in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
        "ssl.key.pem",
        "ssl.key.password",
        "ssl.keystore.password",
    ],
)
def test_every_option_of_kafka_that_is_a_secret_is_masked(name: str) -> None:
    """Also on the console's page of settings, which everybody who is known may read."""
    lines = {line.name: line.value for line in show_settings(load_settings({"kafka": {name: "geheim"}}))}
    assert lines[f"kafka.{name}"] == "********"


def set_links(monkeypatch: pytest.MonkeyPatch, service: str) -> None:
    """What Kubernetes sets in each pod of a Service's namespace."""
    for name, value in {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "8780",
        "SERVICE_PORT_API": "8780",
        "PORT": "tcp://10.0.0.1:8780",
        "PORT_8780_TCP": "tcp://10.0.0.1:8780",
        "PORT_8780_TCP_PROTO": "tcp",
        "PORT_8780_TCP_PORT": "8780",
        "PORT_8780_TCP_ADDR": "10.0.0.1",
    }.items():
        monkeypatch.setenv(f"{service}_{name}", value)


def test_links_of_a_service_with_the_bridges_name_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes tells each pod of the namespace of it in `OUTBOX_BRIDGE_PORT` and others: also one of `doctor`."""
    set_links(monkeypatch, "OUTBOX_BRIDGE")
    set_links(monkeypatch, "OUTBOX_BRIDGE_REMOTING")
    assert load_settings().http.port == 8780


@pytest.mark.parametrize("name", ["OUTBOX_BRIDGE_PORT", "OUTBOX_BRIDGE_HTTP_PORT", "OUTBOX_BRIDGE_SERVICE_NAME"])
def test_name_that_only_looks_like_a_link_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """No Service is called so, and a typing error would be a default in production."""
    set_links(monkeypatch, "OUTBOX_BRIDGE_REMOTING")
    monkeypatch.setenv(name, "8781")
    with pytest.raises(ConfigError, match=f"unknown environment variable {name}"):
        load_settings()


def test_receivers_and_secrets_of_webhooks_are_compared() -> None:
    """Which process sends them is chance: after a rotation at one of them alone the receiver refuses now and then."""
    shared = []
    for place, letter in (("a", "a"), ("b", "a"), ("b", "c")):
        secret = b64encode(letter.encode() * 24).decode()
        write(f"[[webhooks]]\nname = 'n'\nurl = 'https://{place}.example'\nsecret = 'whsec_{secret}'\n")
        shared.append(shared_settings(load_settings(), is_called=True, is_door=True))
    first, second, third = shared
    assert {one for one in first if first[one] != second[one]} == {"webhooks.url"}
    assert {one for one in first if second[one] != third[one]} == {"webhooks.secret"}
    assert "example" not in str(shared)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[limits]\nbody_bytes = 2048\n", "limits.body_bytes"),
        ("[[http.masks]]\ntopic = 'orders'\nheaders = ['iban']\n", "http.masks"),
        (
            "[http.tls]\ncert = 'c'\nkey = 'k'\nclient_ca = 'a'\n[auth.certificates]\n'DNS:a' = 'b'\n",
            "auth.certificates",
        ),
        ("[audit]\ntopic = 'acts'\n", "[audit] topic"),
        ("[remoting]\nkey_from = ['KEYS']\n", "remoting.key_from"),
        ("insecure_no_auth = true\n", "insecure_no_auth"),
        (f"[auth]\nadmin_key = '{make_key_text(bytes(48))}'\n", "auth.admin_key"),
    ],
)
def test_setting_in_which_called_processes_must_not_differ_is_compared(text: str, name: str) -> None:
    """With a load balancer before them, whether a call is taken, or shows what is masked, would be chance. No name of a
    person or a topic is in what is compared: whoever asks whether the process is ready reads it."""
    before = shared_settings(load_settings(), is_called=True, is_door=True)
    write(text)
    after = shared_settings(load_settings(), is_called=True, is_door=True)
    assert {one for one in before if before[one] != after[one]} == {name}
    assert "iban" not in str(after)
    assert "DNS" not in str(after)
    settler = shared_settings(load_settings(), is_called=False, is_door=False)
    assert name not in settler
