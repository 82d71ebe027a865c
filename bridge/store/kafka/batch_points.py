"""Crash points inside a Kafka transaction, by what it is written for."""

from collections.abc import Mapping
from typing import NamedTuple

from bridge.fault_points import FaultPoint
from bridge.store.results import BatchKind


class BatchPoints(NamedTuple):
    """In the order in which they are passed; `sent_real` None: such a batch has no messages before its op messages."""

    sent_real: FaultPoint | None
    sent_all: FaultPoint
    committed: FaultPoint


POINTS_OF: Mapping[BatchKind, BatchPoints] = {
    BatchKind.SETTLE: BatchPoints(FaultPoint.SETTLE_SENT_REAL, FaultPoint.SETTLE_SENT_ALL, FaultPoint.SETTLE_COMMITTED),
    BatchKind.BLOCK: BatchPoints(None, FaultPoint.BLOCK_SENT_ALL, FaultPoint.BLOCK_COMMITTED),
    BatchKind.RETRY: BatchPoints(FaultPoint.RETRY_SENT_REAL, FaultPoint.RETRY_SENT_ALL, FaultPoint.RETRY_COMMITTED),
    BatchKind.PARK: BatchPoints(FaultPoint.PARK_SENT_COPY, FaultPoint.PARK_SENT_ALL, FaultPoint.PARK_COMMITTED),
    BatchKind.PUT_BACK: BatchPoints(None, FaultPoint.PUT_BACK_SENT_ALL, FaultPoint.PUT_BACK_COMMITTED),
    BatchKind.POSITION: BatchPoints(None, FaultPoint.POSITION_SENT_ALL, FaultPoint.POSITION_COMMITTED),
    BatchKind.TAKE_OVER: BatchPoints(None, FaultPoint.TAKE_OVER_SENT_ALL, FaultPoint.TAKE_OVER_COMMITTED),
}
