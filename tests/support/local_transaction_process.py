"""A process that stops where it is told, to be killed there: a local transaction, or a check, step by step.

python -m tests.support.local_transaction_process write|check URL TRANSACTION_ID STOP_AT

It says `at STOP_AT` on standard output when it is there, then waits for ever.
"""

import sys
import threading

import sqlalchemy as sa
from sqlalchemy import orm

from outbox.tables import make_record_table
from outbox.transaction_record import TransactionRecord
from tests.support.record_checks import ask

WRITE_STEPS = ("begun", "written", "committed")
CHECK_STEPS = ("read", "barred", "committed")


def main(role: str, url: str, transaction_id: str, stop_at: str) -> None:
    record = TransactionRecord(make_record_table(sa.MetaData()))
    engine = sa.create_engine(url)

    def reach(step: str) -> None:
        if step == stop_at:
            sys.stdout.write(f"at {step}\n")
            sys.stdout.flush()
            threading.Event().wait()

    if role == "write":
        with orm.Session(engine) as session:
            session.execute(sa.text("SELECT 1"))
            reach("begun")
            record.write(session, transaction_id, "orders")
            reach("written")
            session.commit()
            reach("committed")
        return
    statements: list[str] = []

    def after_statement(_: object, __: object, statement: str, *___: object) -> None:
        if record.table.name in statement:
            statements.append(statement)
            reach("read" if len(statements) == 1 else "barred")

    def before_statement(_: object, __: object, statement: str, *___: object) -> None:
        if record.table.name in statement and len(statements) == 2:
            reach("committed")

    sa.event.listen(engine, "after_cursor_execute", after_statement)
    sa.event.listen(engine, "before_cursor_execute", before_statement)
    ask(record, engine, transaction_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
