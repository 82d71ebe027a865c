"""Pages for people: what this is and where to go on, and the HTTP interface. They ask no other host for anything."""

from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response

from api.web.problems import Rejected
from api.web.request import ApiRequest
from api.web.road import NO_PATH, Routes

routes = Routes()

_ASSETS = {name: Path(str(files("fastapi_offline") / "static" / name)) for name in (
    "favicon.png", "redoc.standalone.js", "swagger-ui-bundle.js", "swagger-ui.css",
)}  # fmt: skip
_TITLE = "outbox-bridge"
_HOME = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>outbox-bridge</title>
<link rel="icon" href="{base}/docs/assets/favicon.png">
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
  <dt><a href="{base}/console/">/console</a></dt>
  <dd>What is pending, parked or blocked, why, and what may be done about it.</dd>
  <dt><a href="{base}/docs">/docs</a>, <a href="{base}/redoc">/redoc</a></dt>
  <dd>The HTTP interface, to try and to read; <a href="{base}/openapi.json">/openapi.json</a> for tools.</dd>
  <dt><a href="{base}/readyz?verbose">/readyz?verbose</a></dt>
  <dd>Whether promises can be kept now, each check in a line; <a href="{base}/livez">/livez</a> for probes.</dd>
  <dt><a href="{base}/v1/stats">/v1/stats</a>, <a href="{base}/v1/parked">/v1/parked</a></dt>
  <dd>How many transactions are in which state; those that wait for a person.</dd>
  <dt><a href="{base}/metrics">/metrics</a></dt>
  <dd>For Prometheus.</dd>
  <dt><code>outbox-bridge --help</code></dt>
  <dd>The same from a terminal: <code>tx list</code>, <code>parked list</code>, <code>doctor</code>.</dd>
</dl>
</html>
"""


@routes.add("GET", "/", verb=None)
async def home(request: ApiRequest) -> Response:
    """What this is, for whoever opens the address in a browser."""
    page = _HOME.format(base=escape(_base(request)), version=escape(version(_TITLE)))
    policy = "default-src 'none'; img-src 'self'; style-src 'unsafe-inline'"
    return HTMLResponse(page, headers={"Content-Security-Policy": policy})


@routes.add("GET", "/docs", verb=None)
async def docs(request: ApiRequest) -> Response:
    """The interface, to be tried."""
    assets = f"{_base(request)}/docs/assets"
    return get_swagger_ui_html(
        openapi_url=f"{_base(request)}/openapi.json",
        title=_TITLE,
        swagger_js_url=f"{assets}/swagger-ui-bundle.js",
        swagger_css_url=f"{assets}/swagger-ui.css",
        swagger_favicon_url=f"{assets}/favicon.png",
    )


@routes.add("GET", "/redoc", verb=None)
async def redoc(request: ApiRequest) -> Response:
    """The interface, to be read."""
    assets = f"{_base(request)}/docs/assets"
    return get_redoc_html(
        openapi_url=f"{_base(request)}/openapi.json",
        title=_TITLE,
        redoc_js_url=f"{assets}/redoc.standalone.js",
        redoc_favicon_url=f"{assets}/favicon.png",
        with_google_fonts=False,
    )


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


def _base(request: ApiRequest) -> str:
    """Where the application is mounted."""
    return str(request.scope.get("root_path", "")).rstrip("/")
