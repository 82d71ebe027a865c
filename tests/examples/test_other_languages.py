"""Node.js, Go and Java, without an SDK: an order is in the folder exactly if its message is in Kafka."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import httpx2
import pyspark
import pytest

from tests.support.bridge_process import wait_until
from tests.support.example_process import ExampleProcess, killing_after, killing_before, run
from tests.support.example_stage import ORDERS, MakeExample, Stage
from tests.support.faulty_front import Front, let_through

COMMANDS: Mapping[str, str] = {
    "node-orders": "node shop.mjs {port}",
    "go-orders": "./shop {port}",
    "java-orders": "java -cp lib/* Shop.java {port}",
}
TOOLS = {"node-orders": "node", "go-orders": "go", "java-orders": "java"}


@pytest.fixture(params=sorted(COMMANDS))
def shop(request: pytest.FixtureRequest, stage: Stage, front: Front, make_example: MakeExample) -> ExampleProcess:
    """Running, and known to the bridge; its calls go through `front`."""
    kind = request.param
    if shutil.which(TOOLS[kind]) is None:
        pytest.skip(f"no {TOOLS[kind]}")
    process = make_example(kind, COMMANDS[kind])
    process.settings = {"BRIDGE_URL": front.url, "OUTBOX_SECRET": stage.put_group(kind)}
    if kind == "go-orders":
        run(["go", "build", "-o", "shop", "shop.go"], cwd=process.folder)
    if kind == "java-orders":  # Spark has the packages of pom.xml
        (process.folder / "lib").mkdir()
        for part in ("annotations", "core", "databind"):
            for jar in (Path(pyspark.__file__).parent / "jars").glob(f"jackson-{part}-2*.jar"):
                shutil.copy(jar, process.folder / "lib")
    process.start().wait_answering("/nothing")
    body = {
        "endpoints": [{"url": f"{process.url}/outbox-checks"}],
        "check": {"transaction_timeout_seconds": 1, "interval_seconds": 1},
    }
    stage.api.http.put(f"/v1/producer-groups/{kind}", json=body).raise_for_status()
    return process


def order(shop: ExampleProcess, number: str) -> int | None:
    """The status of the answer; None if it died."""
    body = {"order_id": f"{shop.folder.name}-{number}", "cents": 10}
    try:
        return httpx2.post(f"{shop.url}/orders", json=body, timeout=30).status_code
    except httpx2.TransportError:
        return None


@pytest.mark.parametrize("bin_folder", ["newest"], indirect=True)
def test_order_is_announced_exactly_if_it_is_kept(
    shop: ExampleProcess, stage: Stage, front: Front, bin_folder: Path
) -> None:
    """Once without a fault, once killed before the local commit, once between it and the end; then it is attacked."""
    told: list[str] = []
    assert order(shop, "1") == 201
    front.fault = killing_after("/v1/transactions", shop.kill, told)
    assert order(shop, "2") is None
    front.fault = let_through
    shop.start().wait_answering("/nothing")
    wait_until(lambda: stage.state_of(json.loads(told[0])["transaction_id"]) == "ROLLED_BACK", name="rolled back")

    front.fault = killing_before("/commit", shop.kill)
    assert order(shop, "3") is None
    front.fault = let_through
    shop.start().wait_answering("/nothing")
    wait_until(lambda: stage.read(ORDERS, f"{shop.folder.name}-3"), name="announced")
    assert [len(stage.read(ORDERS, f"{shop.folder.name}-{number}")) for number in "123"] == [1, 0, 1]
    stands_attacks(shop, stage, bin_folder)


def stands_attacks(shop: ExampleProcess, stage: Stage, bin_folder: Path) -> None:
    """Forged, old, odd, large and many calls."""
    command = [str(bin_folder / "outbox-bridge"), "group", "test", shop.folder.name]
    settings = {name: value for name, value in stage.bridge.environment().items() if name.startswith("OUTBOX_BRIDGE_")}
    settings["OUTBOX_BRIDGE_URL"] = stage.api.url
    done = run(command, cwd=shop.folder, settings=settings, is_checked=False)
    assert done.returncode == 0, done.stdout + done.stderr
