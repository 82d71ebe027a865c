"""A producer process: threads that place orders of their own customers, one after the other, until SIGTERM.

python -m tests.kills.producer RUN_FILE NAME NUMBER
"""

import random
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from outbox import Bridge, LocalTransactionBarred, Message, NotPrepared, Unavailable
from outbox.enqueue import enqueue
from outbox.transaction_record import TransactionRecord
from tests.kills.judge import Way
from tests.kills.run_file import GROUP, ORDERS, PUBLISHED, RECORDS, Outcome, RunFile
from tests.support.history.lines import LineWriter

_THREADS = {Way.TRANSACTION: 3, Way.OUTBOX: 2}
_CUSTOMERS = 3  # of each thread
_MEAN_PAUSE_S = {Way.TRANSACTION: 0.1, Way.OUTBOX: 0.05}
_WITHDRAWN = 0.1  # share of the orders that their producer gives up
_EXPECTED = (LocalTransactionBarred, NotPrepared, Unavailable)
_LONG_S = 2.5  # longer than the group's checks wait
_STAGED = (("committed", _LONG_S), ("prepared", _LONG_S))  # how its first thread begins: checks decide in every run
_STEP = "step"  # in a session's `info`: what is called between the steps of its local transaction


class Withdrawn(Exception):
    """The producer gives this order up."""


class DawdlingSession(Session):
    """Stands still after its commit, for a kill or a check to come before the end."""

    def commit(self) -> None:
        super().commit()
        self.info[_STEP]("committed")


class DawdlingRecord:
    """The ready-made transaction record; before and after it is written the producer may stand still."""

    def __init__(self) -> None:
        self._record = TransactionRecord(RECORDS)

    def write(self, session: Session, transaction_id: str, producer_group: str) -> None:
        session.info[_STEP]("prepared")
        self._record.write(session, transaction_id, producer_group)
        session.info[_STEP]("written")


class Writer:
    """One thread. Nobody else writes orders of its customers, but what a killed one before it still commits."""

    def __init__(self, run: RunFile, name: str, number: int, way: Way, thread: int, bridge: Bridge) -> None:
        """`number`, `thread`: of its producer and of this writer in it, the same after a kill."""
        place = f"{way.name.lower()}-{number}-{thread}"
        is_first = way is Way.TRANSACTION and thread == 0
        self._way = way
        self._bridge = bridge
        self._engine = sa.create_engine(run.database_url)
        self._rng = random.Random(f"{run.seed} {name} {place}")
        self._log = LineWriter(run.folder / f"{name}.{place}.outcomes.jsonl")
        self._next: dict[str, int] = {}
        self._staged = iter(_STAGED if is_first else ())
        self._customers = [f"{place}-{number}" for number in range(_CUSTOMERS)]

    def work(self, stopping: threading.Event) -> None:
        """Until it is to stop; the order that was begun is brought to its end."""
        while not stopping.wait(self._rng.expovariate(1 / _MEAN_PAUSE_S[self._way])):
            order_id, customer = str(uuid.uuid4()), self._rng.choice(self._customers)
            self._log.write(Outcome(order_id, self._try(order_id, customer)))

    def _try(self, order_id: str, customer: str) -> str:
        """What became of it, in a word."""
        place = self._place_by_transaction if self._way is Way.TRANSACTION else self._place_by_outbox
        try:
            number = self._next.get(customer) or self._read_next(customer)
            word = place(order_id, customer, number)
        except Withdrawn:
            return "withdrawn"
        except (*_EXPECTED, IntegrityError) as error:
            self._next.pop(customer, None)
            return type(error).__name__
        self._next[customer] = number + 1
        return word

    def _place_by_transaction(self, order_id: str, customer: str, number: int) -> str:
        with DawdlingSession(self._engine, info={_STEP: self._make_step()}) as session:
            with self._bridge.transaction(session) as transaction:
                self._insert(session, order_id, customer, number)
                transaction.send(self._way, key=customer, value=_body(order_id, customer, number))
            result = transaction.result
        return PUBLISHED if result is not None and result.is_settled else "left to the check"

    def _place_by_outbox(self, order_id: str, customer: str, number: int) -> str:
        with DawdlingSession(self._engine, info={_STEP: self._make_step()}) as session:
            self._insert(session, order_id, customer, number)
            enqueue(session, Message(self._way, key=customer, value=_body(order_id, customer, number)))
            session.info[_STEP]("written")
            session.commit()
        return "enqueued"

    def _insert(self, session: Session, order_id: str, customer: str, number: int) -> None:
        row = {"order_id": order_id, "customer": customer, "number": number, "way": self._way}
        session.execute(sa.insert(ORDERS).values(row))

    def _read_next(self, customer: str) -> int:
        with self._engine.connect() as conn:
            last = conn.scalar(sa.select(sa.func.max(ORDERS.c.number)).where(ORDERS.c.customer == customer))
        return (last or 0) + 1

    def _make_step(self) -> Callable[[str], None]:
        """Where this local transaction stands still, for how long, and where it gives up."""
        steps = ("prepared", "written", "committed")
        drawn_s = self._rng.choices((0.0, self._rng.uniform(0, 0.3), _LONG_S), (84, 12, 4))[0]
        dawdled, seconds = next(self._staged, (self._rng.choice(steps), drawn_s))
        given_up = self._rng.choice(steps[:2]) if self._rng.random() < _WITHDRAWN else None

        def reach(step: str) -> None:
            if step == dawdled:
                time.sleep(seconds)
            if step == given_up:
                raise Withdrawn

        return reach


def _body(order_id: str, customer: str, number: int) -> dict[str, object]:
    return {"order_id": order_id, "customer": customer, "number": number}


def main() -> None:
    """Works until SIGTERM."""
    run, name, number = RunFile.read(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    bridge = Bridge(run.urls[number % len(run.urls)], GROUP, record=DawdlingRecord())
    writers = [
        Writer(run, name, number, way, thread, bridge) for way, count in _THREADS.items() for thread in range(count)
    ]
    threads = [threading.Thread(target=writer.work, args=(stopping,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:  # a signal must not find this one under the lock of `stopping`
        thread.join()
    bridge.close()


if __name__ == "__main__":
    main()
