"""Where the shop answers, and where the bridge may ask."""

from django.urls import path

from outbox.django import check_view
from store.bridging import checks
from store.views import place_order, read_order

urlpatterns = [
    path("orders", place_order),
    path("orders/<str:order_id>", read_order),
    path("outbox-checks", check_view(checks)),
]
