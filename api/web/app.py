"""The HTTP application."""

import inspect
import json
from collections.abc import Callable
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp

from api.web import bodies, checks, groups, health, keys, parked, resolutions, search, transactions, views, webhooks
from api.web.guard import UNPROVEN, Traffic
from api.web.limits import ByteBudget, Quotas
from api.web.metrics import HttpMetrics
from api.web.openapi import COMPONENT, GROUPS, HEALTH, OPERATORS, Json, Merged, for_clients, reference
from api.web.problems import PROBLEMS, Rejected
from api.web.request import ApiRequest, Services
from api.web.road import NO_PATH, Road, Routes, Site

# --- pages for people ---

routes = Routes()

_ASSETS = {name: Path(str(files("fastapi_offline") / "static" / name)) for name in (
    "favicon.png", "redoc.standalone.js", "swagger-ui-bundle.js", "swagger-ui.css",
)}  # fmt: skip
_TITLE = "outbox-bridge"
_DOCS_ASSETS = "docs/assets"  # all addresses are relative, so a proxy may put a path before them
_UNFRAMED = "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"  # a page of another's cannot borrow clicks
# both documents begin with a script in their page, and write styles into it
_DOCS_HEADERS = {
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline'; img-src 'self' data:; worker-src blob:; "
    f"object-src 'none'; {_UNFRAMED}",
    "X-Content-Type-Options": "nosniff",
}
_HOME = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>outbox-bridge</title>
<link rel="icon" href="docs/assets/favicon.png">
<style>
  :root {{ color-scheme: light dark; }}
  body {{ font: 1rem/1.6 system-ui, sans-serif; max-width: 42rem; margin: 3rem auto; padding: 0 1rem; }}
  code {{ font-size: .95em; }}
  dt {{ font-weight: 600; margin-top: .8rem; }}
  dd {{ margin: 0; }}
</style>
<h1>outbox-bridge <small>{version}</small></h1>
<p>RocketMQ's transactional messages, for Kafka: a producer prepares a message, runs its local
transaction, then commits or rolls back. If that call never comes, the bridge asks.</p>
<dl>
  <dt><a href="console/">/console</a></dt>
  <dd>What is pending, parked or blocked, why, and what may be done about it.</dd>
  <dt><a href="docs">/docs</a>, <a href="redoc">/redoc</a></dt>
  <dd>The HTTP interface, to try and to read; <a href="openapi.json">/openapi.json</a> for tools.</dd>
  <dt><a href="readyz?verbose">/readyz?verbose</a></dt>
  <dd>Whether promises can be kept now, each check in a line; <a href="livez">/livez</a> for probes.</dd>
  <dt><a href="v1/stats">/v1/stats</a>, <a href="v1/parked">/v1/parked</a></dt>
  <dd>How many transactions are in which state; those that wait for a person.</dd>
  <dt><a href="metrics">/metrics</a></dt>
  <dd>For Prometheus.</dd>
  <dt><code>outbox-bridge --help</code></dt>
  <dd>The same from a terminal: <code>tx list</code>, <code>parked list</code>, <code>doctor</code>.</dd>
</dl>
</html>
"""


@routes.add("GET", "/", verb=None)
async def home(_: ApiRequest) -> Response:
    """What this is, for whoever opens the address in a browser."""
    page = _HOME.format(version=escape(version(_TITLE)))
    policy = f"default-src 'none'; img-src 'self'; style-src 'unsafe-inline'; {_UNFRAMED}"
    return HTMLResponse(page, headers={"Content-Security-Policy": policy})


@routes.add("GET", "/docs", verb=None)
async def docs(_: ApiRequest) -> Response:
    """The interface, to be tried."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=_TITLE,
        swagger_js_url=f"{_DOCS_ASSETS}/swagger-ui-bundle.js",
        swagger_css_url=f"{_DOCS_ASSETS}/swagger-ui.css",
        swagger_favicon_url=f"{_DOCS_ASSETS}/favicon.png",
    )
    page.headers.update(_DOCS_HEADERS)
    return page


@routes.add("GET", "/redoc", verb=None)
async def redoc(_: ApiRequest) -> Response:
    """The interface, to be read."""
    page = get_redoc_html(
        openapi_url="openapi.json",
        title=_TITLE,
        redoc_js_url=f"{_DOCS_ASSETS}/redoc.standalone.js",
        redoc_favicon_url=f"{_DOCS_ASSETS}/favicon.png",
        with_google_fonts=False,
    )
    page.headers.update(_DOCS_HEADERS)
    return page


@routes.add("GET", "/openapi.json", verb=None)
@routes.add("HEAD", "/openapi.json", verb=None)
async def openapi(request: ApiRequest) -> Response:
    """The interface, for tools."""
    return JSONResponse(request.scope["app"].openapi())


@routes.add("GET", "/docs/assets/{name}", verb=None)
async def asset(_: ApiRequest, name: str) -> Response:
    """A script, a style or a picture of these pages."""
    if name not in _ASSETS:
        raise Rejected(NO_PATH)
    return FileResponse(_ASSETS[name], headers={"Cache-Control": "public, max-age=3600"})


_MODULES = (bodies, checks, groups, health, keys, parked, resolutions, search, transactions, views, webhooks)
# --- the application ---

_DESCRIPTION = """\
RocketMQ's transactional messages, for Kafka: prepare a half message, run your local
transaction, then commit or roll back. If the end never comes, the bridge asks your producer group.

Every error is `application/problem+json` (RFC 9457). `outcome` tells whether the call changed anything:
`not_applied`, or `unknown`, and then repeating the call gives the truth. Unknown paths answer `not-found`, other
methods `method-not-allowed` with `Allow`.

| status | code | meaning | what to do |
|---|---|---|---|
"""


def make_document(app: FastAPI) -> Json:
    """The document of the application's routes."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        openapi_version=app.openapi_version,
        summary=app.summary,
        description=_DESCRIPTION + "\n".join(_problem_rows()),
        routes=app.routes,
        tags=app.openapi_tags,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    document["security"] = [{"key": []}, {}] if app.state.is_open else [{"key": []}]
    for path in UNPROVEN & document["paths"].keys():
        document["paths"][path]["get"]["security"] = []
    document["webhooks"] = {"transaction.check": _check_callback()}
    schemas = _find_used(document, make_schemas())
    document["components"] = {"schemas": schemas, "securitySchemes": {"key": _KEY_SCHEME}}
    return document


def make_schemas() -> Json:
    """Schemas of all structs that go in or out."""
    structs = [struct for module in _MODULES for struct in _structs(module)]
    _, components = msgspec.json.schema_components(structs, ref_template=COMPONENT)
    schemas: Json = for_clients(components)
    merged = [each for module in _MODULES for _, each in inspect.getmembers(module) if isinstance(each, Merged)]
    return dict(sorted((schemas | {each.name: each.make_schema(schemas) for each in merged}).items()))


def _find_used(document: Json, schemas: Json) -> Json:
    """Those that the document needs: what was merged is in no answer any more."""
    found, text = set[str](), json.dumps([document["paths"], document["webhooks"]])
    while named := {name for name in schemas.keys() - found if f'{COMPONENT.format(name=name)}"' in text}:
        found |= named
        text = json.dumps([schemas[name] for name in named])
    return {name: schema for name, schema in schemas.items() if name in found}


def _structs(module: ModuleType) -> list[type[Any]]:
    return [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, msgspec.Struct)
        and member.__module__ == module.__name__
        and not member.__name__.startswith("_")
    ]


def _problem_rows() -> list[str]:
    rows = sorted(PROBLEMS.values(), key=lambda row: (row.status, row.slug))
    return [f"| {row.status} | `{row.slug}` | {row.title} | {row.remedy} |" for row in rows]


def _check_callback() -> Json:
    """What the bridge sends to an endpoint of a producer group."""
    headers = {
        "webhook-id": "The same for each endpoint tried within one round.",
        "webhook-timestamp": "Seconds since 1970, of this attempt.",
        "webhook-signature": "`v1,` and the HMAC-SHA256 of `id.timestamp.body`, base64; one for each valid secret.",
    }
    return {
        "post": {
            "tags": ["callback"],
            "summary": "Check",
            "description": "Asks a producer group what became of transactions whose end is missing. Signed as Standard "
            "Webhooks say. Anything but 200 with exactly the shape below is no answer: it uses up no check, and the "
            "next endpoint is asked. UNKNOWN is an answer and uses one up.",
            "operationId": "transaction_check",
            "parameters": [
                {"name": name, "in": "header", "required": True, "description": text, "schema": {"type": "string"}}
                for name, text in headers.items()
            ],
            "requestBody": {"required": True, "content": {"application/json": {"schema": reference(checks.CheckCall)}}},
            "responses": {
                "200": {
                    "description": "Resolutions. A transaction that is left out is asked about again.",
                    "content": {"application/json": {"schema": reference(checks.CheckAnswer)}},
                }
            },
        }
    }


_KEY_SCHEME = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "obk_...",
    "description": "An API key of the bridge. A bridge on loopback that was started with `--insecure-no-auth`, as by "
    "`outbox-bridge dev`, takes calls without one, and its document says so.",
}
_TAGS = [
    {"name": "transactions", "description": "Prepare and end transactions, look them up."},
    {"name": "messages", "description": "Publish without a local transaction."},
    {"name": GROUPS, "description": "Who may answer checks, and how they are asked."},
    {"name": "keys", "description": "Who may call, what for, and the keys that prove it."},
    {"name": OPERATORS, "description": "Parked transactions, timelines, counts, audit."},
    {"name": HEALTH, "description": "Liveness, readiness, metrics."},
    {"name": "callback", "description": "What the bridge asks of you."},
]
_TABLE = [
    *routes,
    *transactions.routes,
    *search.routes,
    *transactions.published,
    *resolutions.routes,
    *parked.routes,
    *groups.routes,
    *checks.routes,
    *keys.routes,
    *webhooks.routes,
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


def create_app(
    services: Services, *, site: Site | None = None, is_api: bool = True, has_metrics: bool = True
) -> FastAPI:
    """The application over these services. Serve it with `ApiServer`, which also bounds heads of requests.

    `is_api` False: health and metrics alone, for a process without the api role. `has_metrics` False: they are on a
    port of their own (`create_metrics_app`). `site`: pages beside the interface.
    """
    site = site if is_api else None
    whole = [*_TABLE, *([] if site is None else site.routes)] if is_api else health.routes
    table = [r for r in whole if has_metrics or r.run is not health.get_metrics]
    limits = services.limits
    quotas = Quotas(limits.quotas, limits.in_flight)
    traffic = Traffic(limits.in_flight, ByteBudget(limits.in_flight_bytes), quotas)
    now: dict[str, tuple[str, Callable[[], float]]] = {
        "requests_in_flight": ("Requests being served, without streams.", lambda: traffic.in_flight),
        "streams": ("Streams of lines (NDJSON) that are open.", lambda: traffic.streams.count),
        "bytes_in_flight": ("Bytes of requests that are held.", lambda: traffic.budget.used),
    }
    return _make_app(Road(table, services, traffic, HttpMetrics(services.exposition.registry, now), site=site))


def create_metrics_app(app: FastAPI) -> FastAPI:
    """Health and metrics of the same process."""
    road: Road = app.state.road
    return _make_app(Road(health.routes, road.services, road.traffic, road.metrics, is_open=True))


def _make_app(road: Road) -> FastAPI:
    app = _Application(
        title="outbox-bridge",
        summary="Transactional messages for Kafka over HTTP",
        version=version("outbox-bridge"),
        openapi_tags=_TAGS,
        openapi_url=None,  # api.web.app has it, and the pages without other hosts
        docs_url=None,
        redoc_url=None,
    )
    app.state.is_open = road.services.access.config.is_open
    app.router.routes.extend(road.table)
    app.state.road = road
    return app
