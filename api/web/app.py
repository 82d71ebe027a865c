"""The HTTP application."""

from collections.abc import Callable
from importlib.metadata import version

from fastapi import FastAPI
from starlette.types import ASGIApp

from api.web import acts, checks, groups, health, messages, pages, parked, resolutions, search, transactions
from api.web.document import make_document
from api.web.guard import Traffic
from api.web.limits import ByteBudget
from api.web.metrics import HttpMetrics
from api.web.openapi import Json
from api.web.road import Road
from api.web.services import Services

_TAGS = [
    {"name": "transactions", "description": "Prepare and end transactions, look them up."},
    {"name": "messages", "description": "Publish without a local transaction."},
    {"name": "producer groups", "description": "Who may answer checks, and how they are asked."},
    {"name": "operators", "description": "Parked transactions, timelines, counts, audit."},
    {"name": "health", "description": "Liveness, readiness, metrics."},
    {"name": "callback", "description": "What the bridge asks of you."},
]
_TABLE = [
    *pages.routes,
    *transactions.routes,
    *acts.routes,
    *search.routes,
    *messages.routes,
    *resolutions.routes,
    *parked.routes,
    *groups.routes,
    *checks.routes,
    *health.routes,
]


class _Application(FastAPI):
    """FastAPI with our document and our road."""

    def openapi(self) -> Json:
        if self.openapi_schema is None:
            self.openapi_schema = make_document(self)
        return self.openapi_schema

    def build_middleware_stack(self) -> ASGIApp:
        road: Road = self.state.road
        return road


def create_app(services: Services, *, is_api: bool = True) -> FastAPI:
    """The application over these services. Serve it with `ApiServer`, which also bounds heads of requests.

    `is_api` False: health and metrics alone, for a process without the api role.
    """
    app = _Application(
        title="outbox-bridge",
        summary="Transactional messages for Kafka over HTTP",
        version=version("outbox-bridge"),
        openapi_tags=_TAGS,
        openapi_url=None,  # api.web.pages has it, and the pages without other hosts
        docs_url=None,
        redoc_url=None,
    )
    table = _TABLE if is_api else health.routes
    app.router.routes.extend(table)
    traffic = Traffic(services.limits.in_flight, ByteBudget(services.limits.in_flight_bytes))
    now: dict[str, tuple[str, Callable[[], float]]] = {
        "requests_in_flight": ("Requests being served, without streams.", lambda: traffic.in_flight),
        "streams": ("Streams of lines (NDJSON) that are open.", lambda: traffic.streams.count),
        "bytes_in_flight": ("Bytes of requests that are held.", lambda: traffic.budget.used),
    }
    app.state.road = Road(table, services, traffic, HttpMetrics(services.registry, now))
    return app
