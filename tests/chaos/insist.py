"""The one way to do what needs something that the run itself torments: again and again, until it is done."""

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaException

T = TypeVar("T")

_PATIENCE_S = 300.0
_PAUSE_S = 0.5


def insist(act: Callable[[], T], patience_s: float = _PATIENCE_S) -> T:
    """What `act` returns in the end. It must do no harm when it is repeated; after so long its last error is raised.

    Whatever it raises counts as "not now": a client of something that is away says so in many ways.
    """
    give_up_at = time.monotonic() + patience_s
    while True:
        try:
            return act()
        except Exception:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(_PAUSE_S)


def insist_once(act: Callable[[], None], done_code: int) -> None:
    """For an act that Kafka refuses with this code when an earlier try has done it, unheard."""

    def act_or_done() -> None:
        try:
            act()
        except KafkaException as error:
            if error.args[0].code() != done_code:
                raise

    insist(act_or_done)
