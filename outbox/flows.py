"""Runs a flow that is written for event loops, but whose steps block instead of suspending."""

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_now(flow: Coroutine[Any, Any, T]) -> T:
    """Its result, in the caller's thread. This is why what both faces do is written once."""
    try:
        flow.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    flow.close()
    raise RuntimeError("a step of a blocking flow has suspended")
