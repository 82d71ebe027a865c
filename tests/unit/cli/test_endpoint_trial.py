"""api.cli.endpoint_trial: an endpoint's answer is judged as the checker would."""

import json

import pytest

from api.cli.endpoint_trial import judge_reply, make_sample
from bridge.core.transaction_id import is_transaction_id
from checker.caller import Failure, Reply

CHECK = make_sample("orders", 1_700_000_000_000)


def reply(**entry: object) -> Reply:
    members = {"transaction_id": CHECK.transaction_id, "nonce": CHECK.nonce, "resolution": "ROLLBACK", **entry}
    return Reply("http://x/check", 3, 200, json.dumps({"resolutions": [members]}).encode())


def test_sample_is_a_check_like_any_other() -> None:
    """An endpoint that checks the shape of what it gets must not refuse it."""
    shown = json.loads(CHECK.text)
    assert is_transaction_id(shown["transaction_id"])
    assert shown["check_number"] == 1
    assert shown["messages"][0]["key"] == "sample"


@pytest.mark.parametrize("resolution", ["ROLLBACK", "UNKNOWN", 12])
def test_unknown_transaction_may_be_rolled_back_or_unknown(resolution: object) -> None:
    """Both are right about what never was."""
    assert judge_reply(reply(resolution=resolution), CHECK)[0]


@pytest.mark.parametrize(
    "wrong",
    [
        reply(resolution="COMMIT"),
        reply(resolution="MAYBE"),
        reply(nonce="1-other"),
        reply(extra=1),
        Reply("http://x/check", 3, 200, b"ok"),
        Reply("http://x/check", 3, 200, b'{"resolutions": []}'),
        Reply("http://x/check", 3, 401, failure=Failure.STATUS),
        Reply("http://x/check", 0, failure=Failure.REFUSED),
    ],
)
def test_anything_else_is_wrong_and_has_a_remedy(wrong: Reply) -> None:
    """COMMIT would publish what the group knows nothing of; the rest would never count."""
    is_ok, found, remedy = judge_reply(wrong, CHECK)
    assert not is_ok
    assert found
    assert remedy


def test_every_failure_of_a_call_has_a_remedy() -> None:
    """A new kind of failure must say what to do, too."""
    for failure in Failure:
        assert judge_reply(Reply("http://x/check", 0, failure=failure), CHECK)[2]
