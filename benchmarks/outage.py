"""What a service loses while its bridge is away: `python -m benchmarks.outage`, a Markdown table.

Thirty requests at once, again and again, share fifteen connections to a PostgreSQL with a write that needs no bridge.
"""

import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Bridge, Transaction, TransactionState
from outbox.client.errors import OutboxError
from outbox.tables import make_record_table
from outbox.testing.bridge import MemoryOutboxBridge
from outbox.testing.process import BridgeProcess
from tests.support.away import black_holed, frozen, refusing
from tests.support.postgres import PostgresServer

_REQUESTS = 30
_POOL = 15
_SECONDS = 12.0
_TOPIC = "orders"
_METADATA = sa.MetaData()
_ORDERS = sa.Table(
    "orders", _METADATA, sa.Column("id", sa.Integer, primary_key=True), sa.Column("number", sa.String, nullable=False)
)
make_record_table(_METADATA)

Body = Callable[[Session, Transaction], None]


def _insert(session: Session) -> int:
    inserted = sa.insert(_ORDERS).values(number=str(uuid.uuid4())).returning(_ORDERS.c.id)
    return int(session.execute(inserted).scalar_one())


def _rows_first(session: Session, transaction: Transaction) -> None:
    transaction.send(_TOPIC, key=str(_insert(session)), value="x")


def _early(session: Session, transaction: Transaction) -> None:
    transaction.send(_TOPIC, key=str(uuid.uuid4()), value="x")
    transaction.prepare_early()
    _insert(session)


def _rows_last(_: Session, transaction: Transaction) -> None:
    transaction.send(_TOPIC, key=str(uuid.uuid4()), value="x")


BODIES: dict[str, Body] = {
    "rows before the end of the block": _rows_first,
    "`prepare_early`": _early,
    "nothing but the record": _rows_last,
}


def main() -> int:
    """The table."""
    print("| bridge | block | a request, median | longest | unrelated write, median | longest | after 4 s |")
    print("|---|---|---|---|---|---|---|")
    database = PostgresServer(is_durable=True)
    try:
        with tempfile.TemporaryDirectory() as folder, BridgeProcess("memory", Path(folder)) as process:
            for fault in ("none", "refusing", "black-holed", "frozen"):
                for name, body in BODIES.items():
                    with _away(fault, process) as url:
                        _measure(fault, name, body, url, database)
    finally:
        database.close()
    return 0


@contextmanager
def _away(fault: str, process: BridgeProcess) -> Iterator[str]:
    with ExitStack() as stack:
        if fault == "refusing":
            yield stack.enter_context(refusing())
        elif fault == "black-holed":
            yield stack.enter_context(black_holed())
        else:
            bridge = MemoryOutboxBridge(process)
            bridge.open()
            bridge.create_topic(_TOPIC)
            stack.callback(bridge.close)
            if fault == "frozen":
                stack.enter_context(frozen(process._popen.pid))  # noqa: SLF001 - nothing else shows it
            yield bridge.url


def _measure(fault: str, name: str, body: Body, url: str, database: PostgresServer) -> None:
    engine = sa.create_engine(database.create(), pool_size=_POOL, max_overflow=0, pool_timeout=60)
    _METADATA.create_all(engine)
    stop_s = time.monotonic() + _SECONDS
    asked: list[float] = []
    with Bridge(url, "shop") as bridge, ThreadPoolExecutor(_REQUESTS + 1) as pool:
        requests = [pool.submit(_ask, bridge, engine, body, stop_s, asked) for _ in range(_REQUESTS)]
        writes = pool.submit(_write, engine, stop_s).result()
        for request in requests:
            request.result()
    later = [took for at, took in writes if at > stop_s - _SECONDS + 4]
    figures = [_median(asked), max(asked), _median([took for _, took in writes]), max(took for _, took in writes)]
    shown = " | ".join(f"{figure * 1000:,.0f} ms" for figure in [*figures, max(later, default=0.0)])
    print(f"| {fault} | {name} | {shown} |", flush=True)
    engine.dispose()


def _ask(bridge: Bridge, engine: sa.Engine, body: Body, stop_s: float, asked: list[float]) -> None:
    while (began_s := time.monotonic()) < stop_s:
        try:
            with Session(engine) as session, bridge.transaction(session) as transaction:
                body(session, transaction)
            if transaction.result is None or transaction.result.state is not TransactionState.COMMITTED:
                raise RuntimeError(f"not settled: {transaction.result}")
        except OutboxError:
            pass
        asked.append(time.monotonic() - began_s)
        time.sleep(0.3)  # a client's next one: a service that refuses at once must not be all that is measured


def _write(engine: sa.Engine, stop_s: float) -> list[tuple[float, float]]:
    took: list[tuple[float, float]] = []
    while (began_s := time.monotonic()) < stop_s:
        with Session(engine) as session:
            _insert(session)
            session.commit()
        took.append((began_s, time.monotonic() - began_s))
        threading.Event().wait(0.02)
    return took


def _median(figures: Sequence[float]) -> float:
    return sorted(figures)[len(figures) // 2]


if __name__ == "__main__":
    sys.exit(main())
