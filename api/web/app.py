"""The HTTP application."""

from collections.abc import Callable
from importlib.metadata import version

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from api.web import checks, health, messages, pages, parked, resolutions, search, transactions
from api.web import groups as producer_groups
from api.web.document import make_document
from api.web.guard import Doorkeeper, LoadShedder, RequestGuard, Traffic
from api.web.hot_path import HotPath
from api.web.limits import ByteBudget
from api.web.metrics import HttpMetrics
from api.web.openapi import Json
from api.web.problems import MALFORMED_REQUEST, METHOD_NOT_ALLOWED, NOT_FOUND, Problem, Rejected
from api.web.services import Services

_TAGS = [
    {"name": "transactions", "description": "Prepare and end transactions, look them up."},
    {"name": "messages", "description": "Publish without a local transaction."},
    {"name": "producer groups", "description": "Who may answer checks, and how they are asked."},
    {"name": "operators", "description": "Parked transactions, timelines, counts, audit."},
    {"name": "health", "description": "Liveness, readiness, metrics."},
    {"name": "callback", "description": "What the bridge asks of you."},
]
_ROUTERS = (
    transactions.router,
    search.router,
    messages.router,
    resolutions.router,
    parked.router,
    producer_groups.router,
    checks.router,
    health.router,
)


class _Application(FastAPI):
    """FastAPI with our document."""

    def openapi(self) -> Json:
        if self.openapi_schema is None:
            self.openapi_schema = make_document(self)
        return self.openapi_schema


def create_app(services: Services, *, is_api: bool = True) -> FastAPI:
    """The application over these services. Serve it with `ApiServer`, which also bounds heads of requests.

    `is_api` False: health and metrics alone, for a process without the api role.
    """
    app = _Application(
        title="outbox-bridge",
        summary="Transactional messages for Kafka over HTTP",
        version=version("outbox-bridge"),
        openapi_tags=_TAGS,
        docs_url=None,  # api.web.pages has them, without other hosts
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.services = services
    app.state.traffic = Traffic(services.limits.in_flight, ByteBudget(services.limits.in_flight_bytes))
    app.state.doorkeeper = Doorkeeper()  # hears from the server where it listens
    for router in (pages.router, *_ROUTERS) if is_api else (health.router,):
        app.router.routes.extend(router.routes)  # plainly: an included router hides its routes' methods and paths
    app.add_exception_handler(HTTPException, _on_http_exception)
    traffic: Traffic = app.state.traffic
    now: dict[str, tuple[str, Callable[[], float]]] = {
        "requests_in_flight": ("Requests being served, without streams.", lambda: traffic.in_flight),
        "streams": ("Streams of lines (NDJSON) that are open.", lambda: traffic.streams.count),
        "bytes_in_flight": ("Bytes of requests that are held.", lambda: traffic.budget.used),
    }
    metrics = HttpMetrics(services.registry, now)
    reception = RequestGuard(app.state.doorkeeper, traffic, metrics)
    app.state.hot_path = HotPath(services, reception) if is_api else None
    app.add_middleware(LoadShedder, reception=reception)
    return app


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """What the framework itself refuses: no route, or not with this method."""
    status = error.status_code if isinstance(error, HTTPException) else 400
    if status == 404:
        raise Rejected(Problem(NOT_FOUND, "there is nothing at this path")) from None
    if status == 405:
        allowed = ", ".join(sorted(_allowed_methods(request)))
        detail = f"{request.method} is not possible here; allowed: {allowed}"
        raise Rejected(Problem(METHOD_NOT_ALLOWED, detail, headers={"Allow": allowed})) from None
    raise Rejected(Problem(MALFORMED_REQUEST, "the request cannot be read")) from None


def _allowed_methods(request: Request) -> set[str]:
    """Methods of all routes at the path: the framework names only those of the first."""
    allowed: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            allowed |= getattr(route, "methods", None) or set()
    return allowed
