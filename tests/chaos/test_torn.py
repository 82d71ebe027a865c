"""What a killed process leaves half-written stops no run and is no finding."""

import json
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.chaos.endpoint import open_server
from tests.chaos.fleet import Slot
from tests.chaos.orders import STEADY, RunFile
from tests.chaos.shop import COMMIT, Shop, make_shop
from tests.support.history.lines import LineWriter


def test_line_that_is_being_written_is_read_later(tmp_path: Path) -> None:
    """A settler says which queues it has while somebody chooses whom to kill."""
    log = tmp_path / "settler.log"
    slot = Slot("settler", 1, cast("Any", SimpleNamespace(log=log)))
    line = json.dumps({"queue": 1, "event": "queue_taken_over"})
    log.write_text(f"{line}\n" + line.replace("1", "0")[:-3])
    assert slot.owned_queues() == [1]
    log.write_text(f"{line}\n" + line.replace("1", "0") + "\n")
    assert slot.owned_queues() == [0, 1]


def test_call_whose_caller_is_killed_in_the_middle_leaves_no_trace(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A stack trace in a log counts as a bug of the bridge."""
    run = RunFile(
        place=str(tmp_path), seed=1, kafka="", urls=(), topics={}, endpoint_ports={}, rate=1, workers=1, singles=1,
        largest_batch=1,
    )  # fmt: skip
    make_shop(run.database(STEADY))
    Shop(run.database(STEADY)).note([("r", COMMIT)])
    check = {"transaction_id": "t", "nonce": "n", "check_number": 1, "messages": [{"headers": [["ref", "r"]]}]}
    body = json.dumps({"checks": [check]}).encode()
    whole = b"POST /check HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with open_server(run, STEADY, 0, "e", LineWriter(tmp_path / "e.checks.jsonl")) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        for sent in (whole[:-9], whole[:30], whole):
            with socket.create_connection(server.server_address[:2], timeout=10) as caller:  # type: ignore[arg-type]
                caller.sendall(sent)
                caller.shutdown(socket.SHUT_WR)
                answer = caller.makefile("rb").read()
            assert (b"COMMIT" in answer) is (sent == whole)
        server.shutdown()
        serving.join()
    assert "Traceback" not in capfd.readouterr().err
