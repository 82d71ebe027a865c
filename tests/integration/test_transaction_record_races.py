"""Local transaction, check and late commit in every order, on real databases with real concurrent sessions."""

from collections.abc import Callable, Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from outbox.client.errors import LocalTransactionBarred
from outbox.client.listener import Resolution
from outbox.tables import make_record_table
from outbox.transaction_record import TransactionRecord
from tests.support.record_checks import ask, ask_until_known
from tests.support.stepped_threads import SteppedThread, interleavings
from tests.support.user_database import UserDatabase

Gate = Callable[[], None]
ENDINGS: dict[str, Callable[[orm.Session], None]] = {
    "commit": orm.Session.commit,
    "rollback": orm.Session.rollback,
    "lost connection": orm.Session.invalidate,
}
WRITER_STEPS, CHECK_STEPS = 2, 4  # write, end; read, bar, commit of the bar, read again


def gated(engine: sa.Engine, table: str, gate: Gate) -> sa.Engine:
    """Waits at the gate before each statement on the table, and before the commit of one that writes."""
    wrote = False

    def before_statement(_: object, __: object, statement: str, *___: object) -> None:
        nonlocal wrote
        if table in statement:
            wrote = statement.startswith("INSERT")
            gate()

    def before_commit(_: object) -> None:
        if wrote:
            gate()

    sa.event.listen(engine, "before_cursor_execute", before_statement)
    sa.event.listen(engine, "commit", before_commit)
    return engine


def test_no_order_of_steps_makes_an_answer_false(user_database: UserDatabase) -> None:
    """COMMIT only of what has committed; ROLLBACK only of what never will; and the same for whoever asks later."""
    record = TransactionRecord(make_record_table(sa.MetaData()))
    engine = user_database.engine()
    record.table.metadata.create_all(engine)
    answers = set()
    for level in user_database.isolation_levels():
        for ending in ENDINGS:
            for order in interleavings((WRITER_STEPS, CHECK_STEPS)):
                transaction_id = f"{level[:4]}-{ending[:4]}-{''.join(map(str, order))}"
                answers.add((ending, run(record, user_database, level, transaction_id, ending, order)))
    assert ("commit", Resolution.COMMIT) in answers  # else the gates were never where they should be
    assert ("commit", Resolution.UNKNOWN) in answers
    assert ("commit", Resolution.ROLLBACK) in answers
    assert ("rollback", Resolution.COMMIT) not in answers
    engine.dispose()


def run(
    record: TransactionRecord,
    database: UserDatabase,
    level: str,
    transaction_id: str,
    ending: str,
    order: tuple[int, ...],
) -> Resolution:
    """Plays one order; holds the answer against what has become of the local transaction."""
    committed: list[bool] = []
    answered: list[Resolution] = []

    def local_transaction(gate: Gate) -> None:
        engine = database.engine(isolation_level=level)
        with orm.Session(engine) as session:
            gate()
            record.write(session, transaction_id, "orders")
            gate()
            ENDINGS[ending](session)
            committed.append(ending == "commit")

    def check(gate: Gate) -> None:
        answered.extend(ask(record, gated(database.engine(), record.table.name, gate), transaction_id))

    actors = [SteppedThread(local_transaction), SteppedThread(check)]
    play(actors, order)
    writer, checker = actors
    refused = (LocalTransactionBarred, sa.exc.OperationalError)
    assert writer.error is None or isinstance(writer.error, refused), writer.error
    has_committed = committed == [True]
    final = ask_until_known(record, database.engine(), transaction_id)
    assert final is (Resolution.COMMIT if has_committed else Resolution.ROLLBACK), transaction_id
    if database.name == "sqlite" and isinstance(checker.error, sa.exc.OperationalError):
        return Resolution.UNKNOWN  # a commit was being written: no answer
    assert checker.error is None, checker.error
    assert answered[0] in (final, Resolution.UNKNOWN), transaction_id
    return answered[0]


def test_many_asking_at_once_agree(user_database: UserDatabase) -> None:
    """Two checks about a transaction that never was, step by step: none says COMMIT, and one bar stays."""
    record = TransactionRecord(make_record_table(sa.MetaData()))
    engine = user_database.engine()
    record.table.metadata.create_all(engine)
    for order in interleavings((CHECK_STEPS, CHECK_STEPS)):
        transaction_id = "".join(map(str, order))
        answered: list[Resolution] = []

        def check(gate: Gate, name: str = transaction_id, answered: list[Resolution] = answered) -> None:
            answered.extend(ask(record, gated(user_database.engine(), record.table.name, gate), name))

        actors = [SteppedThread(check), SteppedThread(check)]
        play(actors, order)
        assert set(answered) <= {Resolution.ROLLBACK, Resolution.UNKNOWN}
        assert ask(record, engine, transaction_id) == [Resolution.ROLLBACK]
    engine.dispose()


def play(actors: Sequence[SteppedThread], order: Sequence[int]) -> None:
    """Steps in this order; then each to its end."""
    for number in order:
        actors[number].step()
    for actor in actors:
        actor.finish()
    for actor in actors:
        actor.join()
