"""Futures that may outlive whoever waits for them."""

import asyncio
from typing import Any


def take_error(future: "asyncio.Future[Any]") -> None:
    """A done callback: if all who waited have gone, its error is nobody's surprise."""
    if not future.cancelled():
        future.exception()
