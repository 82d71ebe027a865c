"""The producer's side of outbox-bridge: what a service imports to send messages with its local transactions.

    bridge = Bridge("http://127.0.0.1:8780", "orders")
    with Session(engine) as session, bridge.transaction(session) as transaction:
        session.add(order)
        transaction.send("orders.created", key=str(order.id), value={"order": order.id})

Importing it imports nothing else before one of its names is used, and then neither SQLAlchemy nor a web framework.

PYTEST_DONT_REWRITE: where this package was imported before pytest began, pytest would warn that it cannot rewrite it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outbox.public import *  # noqa: F403


def __getattr__(name: str) -> object:
    """Loads the public names once (PEP 562): pytest imports this package in every run, for the plugin in it."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(name)
    public = import_module("outbox.public")

    globals().update({public_name: getattr(public, public_name) for public_name in public.__all__})
    globals()["__all__"] = public.__all__
    if name not in globals():
        raise AttributeError(f"module 'outbox' has no attribute {name!r}")
    return globals()[name]
