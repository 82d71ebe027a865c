"""The audit of a bridge that runs, its heads in Kafka, and the commands that look at it."""

import json
import sqlite3
from pathlib import Path

from tests.support.bridge_process import Bridge, wait_until


def test_entry_that_is_changed_in_the_database_is_found(kafka: str, tmp_path: Path) -> None:
    """`audit verify` names it and ends with 1; once the newest are gone the bridge itself says so, until it is told."""
    bridge = Bridge.create(kafka, tmp_path)
    with bridge.serve() as process:
        for number in range(3):
            assert process.http.put(f"/v1/producer-groups/shop-{number}", json={}).status_code == 201

        def verify() -> dict[str, object]:
            found: dict[str, object] = json.loads(bridge.run("audit", "verify", "-o", "json"))
            return found

        wait_until(lambda: "audit_unproven_entries 0.0" in process.get("/metrics").text, 60, "a head is appended")
        whole = wait_until(lambda: (found := verify())["unproven"] == 0 and found, 60, "which proves all")
        assert (whole["entries"], whole["findings"], whole["unlinked"]) == (3, [], 0)
        change(tmp_path, "UPDATE audit SET actor = 'bob' WHERE id = 2")
        said = bridge.run_refused("audit", "verify", "-o", "json")
        assert ('"flaw": "altered"' in said, "1 findings, the first at link 2" in said) == (True, True), said
        change(tmp_path, "DELETE FROM audit_links WHERE number > 1")
        change(tmp_path, "DELETE FROM audit WHERE id > 1")
        assert '"cut"' in bridge.run_refused("audit", "verify", "-o", "json")
        wait_until(lambda: "audit_chain_broken 1.0" in process.get("/metrics").text, 60, "the process says so")
        checks = {check["name"]: check for check in process.get("/readyz?verbose").json()["checks"]}
        assert (checks["audit"]["ok"], checks["audit"]["degraded"]) == (False, True)
        bridge.run("audit", "accept", "--reason", "restored")
        assert process.http.put("/v1/producer-groups/shop-9", json={}).status_code == 201
        wait_until(lambda: "audit_chain_broken 0.0" in process.get("/metrics").text, 60, "it goes on")
        accepted = wait_until(lambda: (found := verify())["unproven"] == 0 and found, 60, "a head is appended")
        assert (accepted["accepted"], accepted["entries"]) == (1, 3)


def change(folder: Path, statement: str) -> None:
    """As somebody does who may write to the database."""
    with sqlite3.connect(folder / "bridge.db", timeout=10) as connection:
        connection.execute(statement)
