"""The check endpoint as a Django view: `path("outbox-checks", check_view(handler))`.

Django's own limit, DATA_UPLOAD_MAX_MEMORY_SIZE (2.5 MB), is not applied: the handler has one of its own.
"""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse  # type: ignore[import-untyped]
from django.views.decorators.csrf import csrf_exempt  # type: ignore[import-untyped]

from outbox.check_handler import CheckHandler, CheckResponse


def check_view(handler: CheckHandler) -> Callable[[HttpRequest], HttpResponse]:
    """A view for the URL configuration. Checks are signed, so they need no CSRF token."""

    def view(request: HttpRequest) -> HttpResponse:
        reply = _respond(handler, request)
        response = HttpResponse(reply.body, status=reply.status)
        for name, value in reply.headers:
            response[name] = value
        return response

    exempt: Callable[[HttpRequest], HttpResponse] = csrf_exempt(view)
    return exempt


def _respond(handler: CheckHandler, request: HttpRequest) -> CheckResponse:
    method = request.method or ""
    refused = handler.gate.refuse_head(method, request.META.get("CONTENT_LENGTH") or None)
    if refused is not None:
        return refused
    body = request.read(handler.gate.config.max_body_bytes + 1)
    return handler.respond(method, {name.lower(): value for name, value in request.headers.items()}, body)
