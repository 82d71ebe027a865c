"""The calls that every transaction makes, straight to their endpoints: routing them would cost more than they do."""

from collections.abc import Iterable, Mapping

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from api.routes import messages, resolutions, transactions

_HOT = frozenset(
    {
        transactions.prepare,
        transactions.prepare_batch,
        transactions.commit,
        transactions.rollback,
        messages.publish,
        messages.publish_batch,
        resolutions.resolve,
    }
)
_ONE = "/v1/transactions/"
_NAME = "{transaction_id}/"


class HotPath:
    """Stands before the router. It answers exactly as the router does; what it does not know goes on to that."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        hot = {route.path: route for route in routes if isinstance(route, APIRoute) and route.endpoint in _HOT}
        self._by_path = {path: route for path, route in hot.items() if _NAME not in path}
        self._by_verb = {path.partition(_NAME)[2]: route for path, route in hot.items() if _NAME in path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._find(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        route, parameters = found
        scope["route"] = route
        answer = await route.endpoint(Request(scope, receive, send), **parameters)
        await answer(scope, receive, send)

    def _find(self, path: str) -> tuple[APIRoute, Mapping[str, str]] | None:
        route = self._by_path.get(path)
        if route is not None:
            return route, {}
        if path.startswith(_ONE):
            transaction_id, _, verb = path[len(_ONE) :].partition("/")
            route = self._by_verb.get(verb)
            if route is not None and transaction_id:
                return route, {"transaction_id": transaction_id}
        return None
