"""The command line against a real bridge on a real Kafka, all as processes."""

import json
import re
import signal
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest

from bridge.sql.engine import upgrade
from tests.references.metrics import PAGE, make_metrics, read_rows
from tests.support.cli_process import (
    DEADLINE_S,
    NOBODYS_PROXY,
    DevProcess,
    is_gone,
    run_command,
    running,
    running_dev,
    wait_for,
)

TOPIC = "orders.created"


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevProcess]:
    """One `dev` for the tests that only use it."""
    options = ["--kafka-port", "0", "--rocketmq-port", "0", "--ephemeral", "--topic", TOPIC]
    with running_dev(tmp_path_factory.mktemp("dev"), *options) as process:
        yield process


def command(dev: DevProcess, tmp_path: Path, *arguments: str, code: int = 0) -> str:
    """Output of a command that ends with this code."""
    done = run_command(*arguments, folder=tmp_path, settings=dev.settings)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def prepare(dev: DevProcess, key: str, group: str = "cli", **more: object) -> str:
    body = {"producer_group": group, "messages": [{"topic": TOPIC, "key": key, "value": {"key": key}}], **more}
    answer = httpx2.post(f"{dev.url}/v1/transactions", json=body, timeout=30)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["transaction_id"])


def test_transaction_goes_its_way_by_commands(dev: DevProcess, tmp_path: Path) -> None:
    """Prepared over HTTP, then looked up, committed, contradicted, listed, told and read by commands."""
    transaction_id = prepare(dev, "way")
    assert json.loads(command(dev, tmp_path, "tx", "get", transaction_id, "-o", "json"))["state"] == "PREPARED"
    committed = json.loads(command(dev, tmp_path, "tx", "commit", transaction_id, "-g", "cli", "-o", "json"))
    (receipt,) = committed["receipts"]
    assert (committed["state"], receipt["topic"]) == ("COMMITTED", TOPIC)
    command(dev, tmp_path, "tx", "rollback", transaction_id, code=4)
    listed = command(dev, tmp_path, "tx", "list", "--key", "way", "-o", "jsonl").splitlines()
    assert [json.loads(line)["transaction_id"] for line in listed] == [transaction_id]
    events = [
        json.loads(line)["type"]
        for line in command(dev, tmp_path, "tx", "timeline", transaction_id, "-o", "jsonl").splitlines()
    ]
    # Nobody serves the group's endpoint: a command that comes late finds that it was called in vain.
    assert [event for event in events if event != "check_unanswered"] == ["prepared", "end", "published", "end"]
    tailed = command(
        dev, tmp_path, "topic", "tail", TOPIC, "--from-beginning", "--no-follow", "-o", "jsonl"
    ).splitlines()
    found = [record for record in map(json.loads, tailed) if record["key"] == "way"]
    assert [(record["offset"], record["value"]) for record in found] == [(receipt["offset"], {"key": "way"})]


def test_operator_ends_what_the_producer_will_not(dev: DevProcess, tmp_path: Path) -> None:
    """Forced with a reason; unknown ids are not found."""
    transaction_id = prepare(dev, "forced")
    forced = command(dev, tmp_path, "tx", "force", transaction_id, "ROLLBACK", "--reason", "test", "-o", "json")
    assert (json.loads(forced)["state"], json.loads(forced)["resolved_by"]) == ("ROLLED_BACK", "operator")
    command(dev, tmp_path, "tx", "resume", transaction_id, "--reason", "test", code=4)
    command(dev, tmp_path, "tx", "get", "0" * 28, code=3)


def test_topics_are_made_and_listed(dev: DevProcess, tmp_path: Path) -> None:
    """A second making is a conflict; reserved and illegal names are refused before Kafka is asked."""
    command(dev, tmp_path, "topic", "create", "made.by.command", "--partitions", "3", "-s", "retention.ms=60000")
    command(dev, tmp_path, "topic", "create", "made.by.command", code=4)
    command(dev, tmp_path, "topic", "create", "RMQ_SYS_TRANS_HALF_TOPIC", code=2)
    command(dev, tmp_path, "topic", "create", "no/name", code=2)
    command(dev, tmp_path, "topic", "tail", "not.there", "--no-follow", code=3)
    listed = {row["topic"]: row for row in json.loads(command(dev, tmp_path, "topic", "list", "-o", "json"))}
    assert (listed["made.by.command"]["partitions"], listed["made.by.command"]["reserved"]) == (3, False)
    assert listed["RMQ_SYS_TRANS_HALF_TOPIC"]["reserved"] is True


def test_topics_are_deleted_when_that_is_meant(dev: DevProcess, tmp_path: Path) -> None:
    """Not without a yes, not twice, and none of the bridge's own."""
    command(dev, tmp_path, "topic", "create", "to.be.deleted")
    command(dev, tmp_path, "topic", "delete", "to.be.deleted", code=1)
    assert "to.be.deleted" in command(dev, tmp_path, "topic", "list")
    command(dev, tmp_path, "topic", "delete", "to.be.deleted", "--yes")
    assert "to.be.deleted" not in command(dev, tmp_path, "topic", "list")
    command(dev, tmp_path, "topic", "delete", "to.be.deleted", "--yes", code=3)
    command(dev, tmp_path, "topic", "delete", "RMQ_SYS_TRANS_HALF_TOPIC", "--yes", code=2)


def test_group_is_put_tried_and_deleted(dev: DevProcess, tmp_path: Path) -> None:
    """An endpoint that answers everything with COMMIT is found out; one that rolls back is good."""
    resolution = "COMMIT"

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["checks"][0]
            entry = {"transaction_id": asked["transaction_id"], "nonce": asked["nonce"], "resolution": resolution}
            raw = json.dumps({"resolutions": [entry]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}/check"
            put = command(dev, tmp_path, "group", "put", "tried", "-e", url, "--check", "max_checks=3", "-o", "json")
            assert json.loads(put)["secret"].startswith("whsec_")
            findings = json.loads(command(dev, tmp_path, "group", "test", "tried", "-o", "json", code=1))
            assert [findings[0][name] for name in ("trial", "verdict")] == ["unknown id", "bad"]
            assert findings[0]["found"] == "COMMIT of a transaction that never was"
            resolution = "ROLLBACK"
            shown = command(dev, tmp_path, "group", "test", "tried", code=1)
            assert re.search(r"unknown id +good +answers ROLLBACK", shown)
            assert re.search(r"no signature +bad +answers it with 200 .*Verify the signature", shown)
            assert re.search(r"after a restart +skipped +needs --restart-command", shown)
        finally:
            server.shutdown()
            thread.join()
    assert json.loads(command(dev, tmp_path, "group", "get", "tried", "-o", "json"))["check"]["max_checks"] == 3
    command(dev, tmp_path, "group", "delete", "tried")
    command(dev, tmp_path, "group", "test", "tried", code=3)


def test_doctor_finds_nothing_broken(dev: DevProcess, tmp_path: Path) -> None:
    """On a fresh `dev`; and its records in the journal are nobody's transactions."""
    diagnoses = json.loads(command(dev, tmp_path, "doctor", "--url", dev.url, "-o", "json"))
    verdicts = {diagnosis["what"]: diagnosis["verdict"] for diagnosis in diagnoses}
    assert verdicts.keys() >= {
        "Java",
        "Kafka",
        "Kafka version",
        "topics",
        "transactions",
        "clocks",
        "SQL",
        "bridge sql",
    }
    assert {what for what, verdict in verdicts.items() if verdict != "ok" and not what.startswith("group ")} == set()
    assert command(dev, tmp_path, "tx", "list", "-g", "outbox-bridge-doctor", "-o", "json") == "[]\n"


def test_doctor_names_what_is_missing(tmp_path: Path) -> None:
    """No Kafka, no database: broken, with what to do."""
    settings = {"OUTBOX_BRIDGE_KAFKA": '{"bootstrap.servers": "127.0.0.1:9"}'}
    done = run_command("doctor", "--url", "http://127.0.0.1:9", "-o", "jsonl", folder=tmp_path, settings=settings)
    assert done.returncode == 1
    broken = [json.loads(line) for line in done.stdout.splitlines() if json.loads(line)["verdict"] == "broken"]
    assert {diagnosis["what"] for diagnosis in broken} == {"Kafka", "SQL"}
    assert all(diagnosis["remedy"] for diagnosis in broken)


def test_doctor_makes_no_database(tmp_path: Path) -> None:
    """It looks: a file that is not there, as after a typing error, is named, and not made."""
    settings = {
        "OUTBOX_BRIDGE_KAFKA": '{"bootstrap.servers": "127.0.0.1:9"}',
        "OUTBOX_BRIDGE_DATABASE_URL": f"sqlite:///{tmp_path / 'brigde.db'}",
    }
    done = run_command("doctor", "--url", "http://127.0.0.1:9", "-o", "json", folder=tmp_path, settings=settings)
    (sql,) = (diagnosis for diagnosis in json.loads(done.stdout) if diagnosis["what"] == "SQL")
    assert (done.returncode, sql["verdict"]) == (1, "broken")
    assert "brigde.db" in sql["found"]
    assert [path.name for path in tmp_path.glob("*.db*")] == []


def test_doctor_asks_nobody_to_migrate_a_database_that_is_away(dev: DevProcess, tmp_path: Path) -> None:
    """Kafka answers, PostgreSQL does not: what is missing is the database, not its tables."""
    away = {"OUTBOX_BRIDGE_DATABASE_URL": "postgresql+psycopg://nobody@127.0.0.1:9/bridge"}
    settings = {"OUTBOX_BRIDGE_KAFKA": json.dumps({"bootstrap.servers": dev.kafka}), **away}
    done = run_command("doctor", "--url", dev.url, "-o", "json", folder=tmp_path, settings=settings)
    found = {diagnosis["what"]: diagnosis for diagnosis in json.loads(done.stdout)}
    assert (done.returncode, found["SQL"]["verdict"], found["topics"]["verdict"]) == (1, "broken", "warning")
    assert "migrate" not in found["topics"]["remedy"]


def test_settings_are_shown_with_their_origin(dev: DevProcess, tmp_path: Path) -> None:
    """File, environment and default beside one another; secrets masked."""
    (tmp_path / "outbox-bridge.toml").write_text('database_url = "sqlite:///secret.db"\n[http]\nport = 9000\n')
    shown = {row["name"]: row for row in json.loads(command(dev, tmp_path, "config", "show", "-o", "json"))}
    assert (shown["http.port"]["value"], shown["http.port"]["origin"]) == ("9000", "file")
    assert shown["kafka.bootstrap.servers"]["origin"] == "environment"
    assert "secret" not in shown["database_url"]["value"]


def test_openapi_document_is_printed(dev: DevProcess, tmp_path: Path) -> None:
    """With the paths of the interface."""
    assert "/v1/transactions" in json.loads(command(dev, tmp_path, "openapi"))["paths"]


def test_bridge_is_called_by_no_proxy_of_the_environment(dev: DevProcess, tmp_path: Path) -> None:
    """It would know no loopback, and see the key."""
    done = run_command("stats", folder=tmp_path, settings={**dev.settings, **NOBODYS_PROXY})
    assert done.returncode == 0, done.stderr


def test_projection_is_rebuilt_while_the_bridge_runs(dev: DevProcess, tmp_path: Path) -> None:
    """And a transaction from before is still found."""
    transaction_id = prepare(dev, "rebuilt")
    command(dev, tmp_path, "tx", "rollback", transaction_id)
    command(dev, tmp_path, "projection", "rebuild")
    wait_for(
        lambda: '"ROLLED_BACK"' in command(dev, tmp_path, "tx", "list", "--key", "rebuilt", "-o", "json"),
        "the rebuilt row",
    )


def test_every_metric_is_documented(dev: DevProcess) -> None:
    """With the words that the exposition has for it."""

    def read_shown() -> str:
        return make_metrics(read_rows(httpx2.get(f"{dev.url}/metrics", timeout=30).text))

    wait_for(lambda: "outbox_bridge_group_pending" in read_shown(), "what SQL knows")  # a moment after the start
    assert PAGE.read_text() == read_shown(), "else run: python -m tests.references.metrics URL"


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    """Bridge first, then Kafka; exit code 0."""
    with running_dev(tmp_path, "--kafka-port", "0", "--ephemeral") as dev:
        family = dev.family()
        assert family
        assert dev.end(signal.SIGINT) == 0
        assert [pid for pid in family if not is_gone(pid)] == []
        assert not dev.data.exists()


def test_data_survive_a_kill(tmp_path: Path) -> None:
    """SIGKILL of `dev`: nothing runs on, and the next `dev` on the data knows what was prepared."""
    with running_dev(tmp_path, "--kafka-port", "0", "--data", "data", "--topic", TOPIC) as first:
        family = first.family()
        transaction_id = prepare(first, "survivor")
        second = run_command("dev", "--data", "data", "--port", "0", "--kafka-port", "0", folder=tmp_path)
        assert second.returncode == 4
        assert first.url in second.stderr
        first.end(signal.SIGKILL)
        wait_for(lambda: all(is_gone(pid) for pid in family), "the broker's end")
    with running_dev(tmp_path, "--kafka-port", "0", "--data", "data") as again:
        committed = json.loads(command(again, tmp_path, "tx", "commit", transaction_id, "-o", "json"))
        assert committed["state"] == "COMMITTED"


def test_existing_cluster_is_used(kafka: str, tmp_path: Path) -> None:
    """`--kafka` starts no broker; `serve` works on what `dev` has made."""
    prefix = {"OUTBOX_BRIDGE_TOPICS__PREFIX": f"{tmp_path.name}."}
    with running_dev(tmp_path, "--kafka", kafka, "--topic", "dev.kafka", settings=prefix) as dev:
        assert dev.kafka == kafka
        assert dev.family() == []
        assert dev.end(signal.SIGTERM) == 0


def test_serve_refuses_to_start_unmigrated(kafka: str, tmp_path: Path) -> None:
    """And names the command, which makes folder and file of the default database, says so to people and programs, and
    may be repeated."""
    settings = {
        "OUTBOX_BRIDGE_KAFKA": json.dumps({"bootstrap.servers": kafka}),
        "OUTBOX_BRIDGE_TOPICS__PREFIX": f"{tmp_path.name}.",
    }
    done = run_command("serve", "--port", "0", folder=tmp_path, settings=settings)
    assert done.returncode != 0
    assert "outbox-bridge migrate" in done.stderr
    for _ in range(2):
        done = run_command("migrate", "-o", "json", folder=tmp_path, settings=settings)
        assert done.returncode == 0
        assert json.loads(done.stdout)[-1] == {"done": "internal topics are as they must be"}
    database = tmp_path / ".outbox-bridge" / "bridge.db"
    assert database.is_file()
    assert not database.stat().st_mode & stat.S_IRWXO  # the bridge's key is in it
    other = settings | {"OUTBOX_BRIDGE_TOPICS__PREFIX": f"{tmp_path.name}-2."}
    for command_line in (["migrate"], ["migrate", "--accept-identity", "--yes"], ["serve", "--port", "0"]):
        done = run_command(*command_line, folder=tmp_path, settings=other)
        assert done.returncode != 0
        assert "set `topics.prefix` back" in done.stderr, done.stderr


def test_process_that_is_told_to_end_while_it_starts_ends_well(tmp_path: Path) -> None:
    """It went on until Kafka, which is away, had been waited for, and told that as its failure."""
    url = f"sqlite:///{tmp_path / 'bridge.db'}"
    upgrade(url)
    settings = {
        "OUTBOX_BRIDGE_DATABASE_URL": url,
        "OUTBOX_BRIDGE_KAFKA": json.dumps({"bootstrap.servers": "127.0.0.1:9"}),
    }
    with running("serve", "--port", "0", folder=tmp_path, settings=settings) as process:
        assert process.stderr is not None
        assert any("Connect to" in line for line in process.stderr), "it looks for Kafka"
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert (process.wait(DEADLINE_S), "error: " in rest) == (0, False), rest


def test_data_folder_that_cannot_be_made_is_a_wrong_setting(tmp_path: Path) -> None:
    """Such as one on a read-only root; said in a line, with the setting."""
    (tmp_path / "data").write_text("a file")
    done = run_command("migrate", folder=tmp_path, settings={"OUTBOX_BRIDGE_DATA_DIR": "data"})
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "data_dir data cannot be made: File exists" in done.stderr


def test_unknown_role_is_a_usage_error(tmp_path: Path) -> None:
    """Names those that there are."""
    done = run_command("serve", "--roles", "api,settlers", folder=tmp_path)
    assert done.returncode == 2
    assert "api, settler, projector" in done.stderr


def test_exposed_host_needs_a_word(tmp_path: Path) -> None:
    """Where nobody is asked who he is, nobody else may call."""
    done = run_command("serve", "--host", "0.0.0.0", "--insecure-no-auth", folder=tmp_path)
    assert done.returncode == 2
    assert "--insecure-no-auth" in done.stderr


def propose(run: Path, transaction_id: str, verb: str, body: dict[str, str] | None) -> None:
    """A report's line, as `report run` writes it."""
    line = {"transaction_id": transaction_id, "kind": "STALE", "method": "POST", "body": body, "evidence": []}
    line |= {
        "path": f"/v1/transactions/{transaction_id}/{verb}",
        "precondition": {"state": ["PREPARED"], "published": False},
    }
    with (run / "repair.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A complete report that proposes nothing, the last of its ledger."""
    run = tmp_path / "reports" / "000007"
    run.mkdir(parents=True)
    for name in ("repair.jsonl", "manifest.json"):
        (run / name).touch()
    (run.parent / "ledger.json").write_text(json.dumps({"v": 1, "runs": [{"run": 6}, {"run": 7}]}))
    return run


def test_repair_shows_then_sends_and_writes_down(dev: DevProcess, tmp_path: Path, run_folder: Path) -> None:
    """Nothing is sent without --apply, nothing twice, and everything that is sent is found in the audit."""
    undecided, committed = prepare(dev, "repair"), prepare(dev, "repaired")
    command(dev, tmp_path, "tx", "commit", committed, "-g", "cli")
    for transaction_id in (undecided, committed):
        propose(run_folder, transaction_id, "force", {"resolution": "COMMIT", "reason": "reconciliation: 60 s ago"})
    audit = run_folder / "repaired.jsonl"

    def repair(*arguments: str) -> list[str]:
        told = command(dev, tmp_path, "report", "repair", str(run_folder.parent), "-o", "jsonl", *arguments)
        return [json.loads(line)["result"] for line in told.splitlines()]

    assert repair() == ["wanted", "not needed any more"]
    assert not audit.exists()
    assert json.loads(command(dev, tmp_path, "tx", "get", undecided, "-o", "json"))["state"] == "PREPARED"
    assert repair("--apply") == ["done", "not needed any more"]
    assert repair("--apply") == ["not needed any more"] * 2
    sent, answered = map(json.loads, audit.read_text().splitlines())
    assert (sent["event"], sent["transaction_id"], sent["body"]["resolution"]) == ("sent", undecided, "COMMIT")
    assert (answered["event"], answered["status"], answered["answer"]["state"]) == ("answered", 200, "COMMITTED")
    assert "reconciliation: 60 s ago" in httpx2.get(f"{dev.url}/v1/audit", timeout=30).text


def test_repair_goes_on_behind_what_is_refused(dev: DevProcess, tmp_path: Path, run_folder: Path) -> None:
    """One transaction that nobody knows any more does not keep the others from being repaired."""
    undecided = prepare(dev, "behind", check_immunity_seconds=3_600)
    propose(run_folder, "0" * 28, "check", None)
    propose(run_folder, undecided, "check", None)
    propose(run_folder, undecided, "force", {"resolution": "ROLLBACK", "reason": "reconciliation: 60 s ago"})
    told = command(dev, tmp_path, "report", "repair", str(run_folder), "--apply", "-o", "jsonl", code=1)
    unknown, asked, ended = (json.loads(line)["result"] for line in told.splitlines())
    assert unknown.startswith("not looked at: ")
    assert asked == "refused: the first check is not due yet (too-early)"
    assert ended == "done"


def test_repair_needs_a_report_and_a_bridge(dev: DevProcess, tmp_path: Path, run_folder: Path) -> None:
    """Each has its exit code and its remedy; a line that is no proposal is not sent."""
    command(dev, tmp_path, "report", "repair", str(tmp_path), code=3)
    propose(run_folder, "0" * 28, "check", None)
    command(dev, tmp_path, "report", "repair", str(run_folder), "--url", "http://127.0.0.1:9", code=5)
    propose(run_folder, "0" * 28, "resume", None)
    command(dev, tmp_path, "report", "repair", str(run_folder), code=1)
