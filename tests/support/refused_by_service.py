"""Requests that only the whole service can refuse: about topics and groups that exist, or do not."""

from collections.abc import Mapping
from typing import Any

from tests.support.bad_requests import BadRequest, make_prepare

GROUP_PATH = "/v1/producer-groups/<group>"


def _unfit(name: str, status: int, code: str, message: Mapping[str, Any], place: str | None = None) -> BadRequest:
    return BadRequest(name, status, code, make_prepare(message), pointer=place)


REFUSED_BY_SERVICE = [
    _unfit("a topic that does not exist", 422, "unknown-topic", {"topic": "no.such.topic"}),
    _unfit("a topic with a slash", 422, "illegal-topic", {"topic": "a/b"}),
    _unfit("an empty topic", 422, "illegal-topic", {"topic": ""}),
    _unfit("a topic of 250 characters", 422, "illegal-topic", {"topic": "t" * 250}),
    _unfit("an internal topic of Kafka", 403, "reserved-topic", {"topic": "__consumer_offsets"}),
    _unfit("an internal topic of the bridge", 403, "reserved-topic", {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}),
    _unfit("an internal topic of another bridge", 403, "reserved-topic", {"topic": "prod-RMQ_SYS_TRANS_OP_HALF_TOPIC"}),
    _unfit("a topic of a companion", 403, "reserved-topic", {"topic": "_schemas"}),
    _unfit("a partition that does not exist", 422, "unknown-partition", {"partition": 1_000}),
    BadRequest(
        "a callback in a private network",
        422,
        "callback-url-forbidden",
        b'{"endpoints":[{"url":"http://10.0.0.1/check"}]}',
        GROUP_PATH,
        "PUT",
        pointer="/endpoints/0/url",
    ),
    BadRequest("a group nobody made", 404, "unknown-producer-group", path=GROUP_PATH + "-not", method="GET"),
    BadRequest(
        "removing a group nobody made", 404, "unknown-producer-group", path=GROUP_PATH + "-not", method="DELETE"
    ),
    BadRequest("removing a group in use", 409, "producer-group-in-use", path=GROUP_PATH, method="DELETE"),
    BadRequest(
        "a leased callback in a private network",
        422,
        "callback-url-forbidden",
        b'{"url":"http://10.0.0.1/check"}',
        GROUP_PATH + "/endpoints",
        pointer="/url",
    ),
    BadRequest(
        "a lease in a group nobody made",
        404,
        "unknown-producer-group",
        b'{"url":"https://orders.example.com/check"}',
        GROUP_PATH + "-not/endpoints",
    ),
    BadRequest("leaving no endpoint", 422, "invalid-request", path=GROUP_PATH + "/endpoints", method="DELETE"),
    BadRequest("fetching from a group that is called", 409, "not-pull-mode", b"{}", GROUP_PATH + "/checks/claim"),
    BadRequest(
        "fetching from a group nobody made", 404, "unknown-producer-group", b"{}", GROUP_PATH + "-not/checks/claim"
    ),
    BadRequest("a check before the first due time", 409, "too-early", b"", path="/v1/transactions/<prepared>/check"),
    BadRequest(
        "a cursor from elsewhere",
        422,
        "invalid-request",
        path="/v1/transactions?cursor=abc",
        method="GET",
        pointer="?cursor",
    ),
]
