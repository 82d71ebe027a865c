"""Endpoints beyond loopback must answer a signed challenge before the bridge calls them."""

import secrets
from pathlib import Path

import outbox
from outbox.check_handler import from_callable
from outbox.client.listener import Resolution
from tests.support.bridge_process import Bridge, check_endpoint, create_topics, wait_until
from tests.support.check_app import serving_checks
from tests.support.problems import check_problem, named_places


def test_endpoint_beyond_loopback_is_asked_unless_it_is_said_otherwise(kafka: str, tmp_path: Path) -> None:
    """One on this machine is the operator's, until its URL names another."""
    bridge = Bridge.create(kafka, tmp_path, OUTBOX_BRIDGE_CALLBACKS__PROVE_OWNERSHIP="remote")
    path = "/v1/producer-groups/orders"
    with bridge.serve() as api, check_endpoint() as stranger:
        near, far = f"http://127.0.0.1:{stranger.port}/check", f"https://nobody.invalid:{stranger.port}/check"
        assert api.http.put(path, json={"endpoints": [{"url": near}]}).status_code == 201
        changed = api.http.put(path, json={"endpoints": [{"url": far}]})
        assert named_places(check_problem(changed, 422, "callback-unverified")) == {"/endpoints/0/url"}
        check_problem(api.post(f"{path}/endpoints", {"url": far}), 422, "callback-unverified")
        assert [endpoint["url"] for endpoint in api.get(path).json()["endpoints"]] == [near]
        assert stranger.calls == []


def test_only_an_endpoint_with_the_secret_is_taken(kafka: str, tmp_path: Path) -> None:
    """Neither with a put nor with a lease another one. What is taken rescues a transaction."""
    topic = f"owned-{secrets.token_hex(4)}"
    create_topics(kafka, {topic: 1})
    bridge = Bridge.create(kafka, tmp_path, OUTBOX_BRIDGE_CALLBACKS__PROVE_OWNERSHIP="all")
    path = "/v1/producer-groups/orders"
    with bridge.serve() as api, check_endpoint() as stranger:
        url = f"http://127.0.0.1:{stranger.port}/check"
        new = api.http.put(path, json={"endpoints": [{"url": url}]})
        assert named_places(check_problem(new, 422, "callback-unverified")) == {"/endpoints/0/url"}
        made = api.http.put(path, json={"check": {"transaction_timeout_seconds": 1}}).json()
        check_problem(api.post(f"{path}/endpoints", {"url": url}), 422, "callback-unverified")
        with (
            serving_checks([made["secret"]], from_callable(lambda checks: [Resolution.COMMIT for _ in checks])) as url,
            outbox.Bridge(api.url, "orders") as face,
            face.endpoint_lease(url) as lease,
        ):
            assert lease.is_registered
            sent = {"producer_group": "orders", "messages": [{"topic": topic, "value": 1}]}
            place = f"/v1/transactions/{api.post('/v1/transactions', sent).json()['transaction_id']}"
            wait_until(lambda: api.get(place).json()["state"] == "COMMITTED", 60, "the rescue")
        assert all(call["checks"] == [] for call in stranger.calls)
