"""The OpenAPI document says what the routes do."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import jsonschema_rs
import pytest
from fastapi.routing import APIRoute

from api.web.app import create_app, make_schemas
from api.web.problems import PROBLEMS
from api.web.views import encode_json, render_event
from bridge.clock import SystemClock
from bridge.core.transaction import TimelineEvent
from bridge.service.access import AccessConfig, AccessService
from bridge.sql.engine import Database
from tests.support.api_fakes import FakeTransactions, make_services

CONTRACT = {
    ("post", "/v1/transactions"),
    ("post", "/v1/transactions/batch"),
    ("get", "/v1/transactions"),
    ("get", "/v1/transactions/{transaction_id}"),
    ("get", "/v1/transactions/{transaction_id}/timeline"),
    ("post", "/v1/transactions/{transaction_id}/commit"),
    ("post", "/v1/transactions/{transaction_id}/rollback"),
    ("post", "/v1/transactions/{transaction_id}/check"),
    ("post", "/v1/transactions/{transaction_id}/force"),
    ("post", "/v1/transactions/{transaction_id}/resume"),
    ("post", "/v1/transactions/{transaction_id}/abandon"),
    ("post", "/v1/resolutions"),
    ("post", "/v1/messages"),
    ("post", "/v1/messages/batch"),
    ("get", "/v1/producer-groups"),
    ("get", "/v1/producer-groups/{group}"),
    ("put", "/v1/producer-groups/{group}"),
    ("delete", "/v1/producer-groups/{group}"),
    ("post", "/v1/producer-groups/{group}/pause"),
    ("post", "/v1/producer-groups/{group}/resume"),
    ("post", "/v1/producer-groups/{group}/rotate-secret"),
    ("post", "/v1/producer-groups/{group}/test"),
    ("post", "/v1/producer-groups/{group}/endpoints"),
    ("delete", "/v1/producer-groups/{group}/endpoints"),
    ("post", "/v1/producer-groups/{group}/checks/claim"),
    ("post", "/v1/pause"),
    ("post", "/v1/resume"),
    ("get", "/v1/parked"),
    ("post", "/v1/parked/redrive"),
    ("get", "/v1/stats"),
    ("get", "/v1/audit"),
    ("get", "/v1/webhooks"),
    ("post", "/v1/webhooks/findings"),
    ("get", "/livez"),
    ("get", "/readyz"),
    ("get", "/metrics"),
}
METHODS = {"get", "put", "post", "delete", "patch", "head", "options"}
APP = create_app(make_services(FakeTransactions()))
DOCUMENT: dict[str, Any] = json.loads(json.dumps(APP.openapi()))
OPERATIONS = [
    (method, path, operation)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
    if method in METHODS
]


def resolve(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with all components beside it, so that references are found."""
    return {**schema, "components": DOCUMENT["components"]}


def test_document_has_exactly_the_routes() -> None:
    """None is left out, none invented; pages for people are no part of the interface."""
    routes = {
        (method.lower(), route.path_format)
        for route in APP.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    pages = {("get", path) for path in ("/", "/docs", "/redoc", "/docs/assets/{name}", "/openapi.json")}
    pages |= {("head", path) for path in ("/livez", "/readyz", "/openapi.json")}
    assert {(method, path) for method, path, _ in OPERATIONS} | pages == routes
    assert routes >= CONTRACT


def test_only_an_open_bridge_says_that_no_key_is_needed() -> None:
    """Tools that read the document send what it asks for."""
    asks = AccessService(cast("Database", None), SystemClock(), AccessConfig(is_open=False))
    keyed = replace(make_services(FakeTransactions()), access=asks)
    assert APP.openapi()["security"] == [{"key": []}, {}]
    document = create_app(keyed).openapi()
    assert document["security"] == [{"key": []}]
    free = {path for path, item in document["paths"].items() for route in item.values() if route.get("security") == []}
    assert free == {"/livez", "/readyz"}


def test_operations_are_named_once_and_described() -> None:
    """Generated clients need unique names, readers need words."""
    names = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(names)) == len(names)
    for _, path, operation in OPERATIONS:
        assert operation["summary"], path
        assert operation["description"], path
        assert operation["tags"], path


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=[f"{m} {p}" for m, p, _ in OPERATIONS])
def test_path_parameters_are_described(method: str, path: str, operation: dict[str, Any]) -> None:
    """Those of the template, no more."""
    described = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
    assert described == {part[1:-1] for part in path.split("/") if part.startswith("{")}, method


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=[f"{m} {p}" for m, p, _ in OPERATIONS])
def test_no_parameter_is_named_twice(method: str, path: str, operation: dict[str, Any]) -> None:
    """The list must hold each name and place once, or tools see the one without its pattern. Source: OpenAPI 3.1."""
    places = [(parameter["name"], parameter["in"]) for parameter in operation["parameters"]]
    assert len(places) == len(set(places))


def test_every_problem_is_described() -> None:
    """Each row of the table is in the overview, and each that a route can answer with is there with an example."""
    overview = DOCUMENT["info"]["description"]
    for slug in PROBLEMS:
        assert f"`{slug}`" in overview
    shown = {
        slug
        for _, _, operation in OPERATIONS
        for response in operation["responses"].values()
        for slug in response["content"].get("application/problem+json", {}).get("examples", {})
    }
    assert shown == set(PROBLEMS) - {"method-not-allowed"}


def test_every_error_is_a_problem() -> None:
    """4xx and 5xx have one shape, but for readiness."""
    for _, path, operation in OPERATIONS:
        for status, response in operation["responses"].items():
            if status >= "400" and (path, status) != ("/readyz", "503"):
                assert set(response["content"]) == {"application/problem+json"}, path
                assert response["description"]


def test_examples_are_valid() -> None:
    """Of requests and of problems, against their own schemas."""
    count = 0
    for _, _, operation in OPERATIONS:
        contents = [operation.get("requestBody", {}).get("content", {})]
        contents += [response["content"] for response in operation["responses"].values()]
        for content in [media for found in contents for media in found.values()]:
            validator = jsonschema_rs.validator_for(resolve(content["schema"]))
            for example in content.get("examples", {}).values():
                validator.validate(example["value"])
                count += 1
    assert count > 100


def test_all_references_lead_somewhere() -> None:
    """And every schema is a valid one."""
    text = json.dumps(DOCUMENT)
    names = set(DOCUMENT["components"]["schemas"])
    referred = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert referred <= names
    for name, schema in DOCUMENT["components"]["schemas"].items():
        jsonschema_rs.meta.validate(schema)
        assert schema.get("description") or name.endswith("Settings"), name


def test_callback_is_described_as_a_webhook() -> None:
    """What the bridge sends, and what counts as an answer."""
    post = DOCUMENT["webhooks"]["transaction.check"]["post"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    call = {
        "type": "transaction.check",
        "producer_group": "orders",
        "checks": [
            {
                "transaction_id": "0206k8e9s5ta7vo3q1m4c8b2h6dg",
                "check_number": 1,
                "nonce": "1-p7Yw0b2cQm3dEf4g",
                "born_time": "2026-01-31T12:00:00.000Z",
                "idempotency_key": None,
                "messages": [{"topic": "t", "key": "k", "value": {"a": 1}, "headers": []}],
            }
        ],
    }
    jsonschema_rs.validator_for(resolve(schema)).validate(call)
    assert {parameter["name"] for parameter in post["parameters"]} == {
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    }


def test_document_is_the_same_every_time() -> None:
    """It can be compared from one release to the next."""
    again = create_app(make_services(FakeTransactions())).openapi()
    assert json.dumps(again) == json.dumps(APP.openapi())
    assert list(make_schemas()) == sorted(make_schemas())


def test_operations_have_names_that_read_well() -> None:
    """Generated code calls them so: a verb and what it is about, and nothing of the path."""
    names = {operation["operationId"] for _, _, operation in OPERATIONS}
    assert {"prepare_transaction", "commit_transaction", "get_transaction", "put_group", "resume_group"} <= names
    for name in names:
        assert re.fullmatch("[a-z]+(_[a-z]+)+", name), name
        assert "v1" not in name


def find_schemas(node: Any) -> Iterator[dict[str, Any]]:
    """The document's objects, whatever they are."""
    if isinstance(node, dict):
        yield node
    for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from find_schemas(each)


def test_schemas_are_such_that_generators_make_good_code() -> None:
    """Each of these broke a client: of OpenAPI Generator (Java), oapi-codegen, openapi-python-client, openapi-fetch."""
    for schema in find_schemas(DOCUMENT["components"]["schemas"]):
        assert schema.get("items") is not False, "they know no schema that is false"
        assert schema.get("type") != "integer" or "format" in schema, "Java's integers are of 32 bits"
        assert "minimum" not in schema or "maximum" in schema, "what is sent has two bounds, or breaks its size"
        kinds = {type(word) for word in schema["enum"]} if isinstance(schema.get("enum"), list) else set()
        assert len(kinds) < 2, "an enum in Java has one type"
        forms = {one.get("type") for one in schema["anyOf"]} if isinstance(schema.get("anyOf"), list) else set()
        assert forms <= {"null"} or len(forms - {"null"}) == 1, "Java's code for several forms is none"
        assert "default" not in schema, "TypeScript takes it as always there, and asks for it in requests"


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=[f"{m} {p}" for m, p, _ in OPERATIONS])
def test_successful_answers_of_a_call_are_of_one_type(method: str, path: str, operation: dict[str, Any]) -> None:
    """Most generated clients read each as that of the lowest status, and would take the others for failures: a redrive
    that has begun, too."""
    told = [answer["content"] for status, answer in operation["responses"].items() if status < "300"]
    assert all(content == told[0] for content in told), (method, path)


OF_EVENTS: list[dict[str, Any]] = [
    {"queue_offset": 1},
    {"number": 1, "endpoint": None, "status": None, "latency_ms": None, "answer": "UNKNOWN", "remark": "r"},
    {"first_ms": 1, "last_ms": 2, "count": 3, "failure": "refused", "endpoint": None},
    {"resolution": "COMMIT", "effective": True, "remark": None},
    {"resolution": "COMMIT", "effective": False, "actor": "a", "reason": "r"},
    {"why": "MAX_CHECKS", "check_times": 15, "parked_offset": 7},
    {"receipts": [["t", 0, 2**40]]},
    {"state": "PARKED"},
]


@pytest.mark.parametrize("members", OF_EVENTS)
def test_all_members_of_events_and_items_are_described(members: dict[str, Any]) -> None:
    """Generated clients drop what is not, or refuse the whole answer."""
    event = json.loads(encode_json(render_event(TimelineEvent(0, "end", None, members))))
    schema = DOCUMENT["components"]["schemas"]["TimelineEventAnswer"]
    jsonschema_rs.validator_for(resolve({**schema, "additionalProperties": False})).validate(event)
    schemas = DOCUMENT["components"]["schemas"]
    for name in ("EndedAnswer", "StoredAnswer", "TransactionAnswer"):
        assert schemas[name]["properties"].keys() <= schemas["BatchItem"]["properties"].keys()
