"""What the shop answers."""

import json
from typing import Any

from django.db import IntegrityError
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from outbox import OutboxError, Outcome
from store.bridging import AtomicSession, bridge
from store.models import Order

TOPIC = "orders.created"
STATUS_OF = {Outcome.NOT_APPLIED: 503, Outcome.UNKNOWN: 504, Outcome.PARTLY: 500}


@csrf_exempt  # an API without cookies
@require_POST
def place_order(request: HttpRequest) -> HttpResponseBase:
    """503: nothing was ordered, try again. 504: perhaps it was, look first. 500: ordered, and never published."""
    try:
        asked: dict[str, Any] = json.loads(request.body)
        order_id, cents = str(asked["order_id"]), int(asked["cents"])
    except (KeyError, TypeError, ValueError):
        return JsonResponse({"detail": "an order has an order_id and cents"}, status=422)
    try:
        with AtomicSession() as session, bridge.transaction(session) as transaction:
            Order.objects.create(order_id=order_id, cents=cents)
            transaction.send(TOPIC, key=order_id, value={"order_id": order_id, "cents": cents})
    except IntegrityError:
        return JsonResponse({"detail": "there is an order of this id"}, status=409)
    except OutboxError as error:
        return JsonResponse({"detail": str(error), "outcome": error.outcome}, status=STATUS_OF[error.outcome])
    return JsonResponse({"order_id": order_id}, status=201)


@require_GET
def read_order(request: HttpRequest, order_id: str) -> HttpResponseBase:
    found = Order.objects.filter(pk=order_id).values("order_id", "cents").first()
    return JsonResponse(found or {}, status=200 if found else 404)
