"""Holds every answer of a running API against its own OpenAPI document."""

import json
import re
from collections.abc import Mapping
from typing import Any

import httpx2
import jsonschema_rs


class Documented:
    """A response hook: an answer with a status or a shape that is not in the document fails the test."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._components = document["components"]
        self._paths = [
            (re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), item)
            for path, item in sorted(document["paths"].items(), key=lambda pair: "{" in pair[0])
        ]
        self._validators: dict[str, Any] = {}

    async def check(self, response: httpx2.Response) -> None:
        """The hook of an asynchronous client."""
        await response.aread()
        self.verify(response)

    def check_now(self, response: httpx2.Response) -> None:
        """The hook of a synchronous client."""
        response.read()
        self.verify(response)

    def verify(self, response: httpx2.Response) -> None:
        """Status and body; the lines of NDJSON are read by their tests."""
        operation = self._find(response.request.method.lower(), response.request.url.path)
        if operation is None:
            assert response.status_code in {404, 405}
            return
        documented = operation["responses"].get(str(response.status_code))
        assert documented is not None, f"{response.status_code} of {response.request.url.path} is not documented"
        kind = response.headers["content-type"].partition(";")[0]
        assert kind in documented["content"], f"{kind} of {response.request.url.path} is not documented"
        if kind.endswith("json") and kind != "application/x-ndjson":
            self._validator(documented["content"][kind]["schema"]).validate(response.json())

    def _find(self, method: str, path: str) -> Mapping[str, Any] | None:
        for pattern, item in self._paths:
            if pattern.fullmatch(path):
                operation: Mapping[str, Any] | None = item.get(method)
                return operation
        return None

    def _validator(self, schema: Mapping[str, Any]) -> Any:
        name = json.dumps(schema, sort_keys=True)
        if name not in self._validators:
            self._validators[name] = jsonschema_rs.validator_for({**schema, "components": self._components})
        return self._validators[name]
