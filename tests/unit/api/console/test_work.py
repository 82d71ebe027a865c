"""What pages make the database do: as much with many transactions as with few."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine

from benchmarks.console_pages import PAGES, fill
from tests.support.whole_bridge import WholeBridge

_STEP = 10  # instructions of SQLite's machine between two calls
_FEW = 2_000
_TIMES = 20


@contextmanager
def counted_steps() -> Iterator[Counter[str]]:
    """Instructions of all databases of this process, at the end, by the statement last begun."""
    steps = Counter[str]()

    def begin(conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        def step() -> None:
            steps[statement] += _STEP

        conn.connection.dbapi_connection.set_progress_handler(step, _STEP)

    sa.event.listen(Engine, "before_cursor_execute", begin)
    try:
        yield steps
    finally:
        sa.event.remove(Engine, "before_cursor_execute", begin)


def measure(folder: Path, count: int) -> dict[str, Counter[str]]:
    """By page: what the database did for it. A tenth is pending, a hundredth parked."""
    found = {}
    folder.mkdir()
    with WholeBridge(folder, {"orders": 1}) as bridge:
        body = {"producer_group": "shop", "messages": [{"topic": "orders", "key": "k", "value": {"n": 1}}]}
        one = bridge.call("POST", "/v1/transactions", body).document["transaction_id"]
        assert bridge.call("POST", f"/v1/transactions/{one}/commit", {}).status == 200
        bridge.pass_ms(5_000)
        fill(bridge.database.url.render_as_string(), count, count // 10, count // 100)
        for path in (*PAGES, f"transactions/{one}"):
            bridge.pass_ms(60_000)  # nothing is remembered
            with counted_steps() as steps:
                assert bridge.call("GET", f"/console/{path}").status == 200
            found[path] = steps
    return found


def test_no_page_makes_the_database_count_what_is_there(tmp_path: Path) -> None:
    """Twenty times as many that ended, are pending and are parked: the work for each page is the same."""
    few, many = (measure(tmp_path / str(count), count) for count in (_FEW, _FEW * _TIMES))
    grown = {
        path: [(statement, few[path][statement], count) for statement, count in steps.most_common(2)]
        for path, steps in many.items()
        if sum(steps.values()) > 2 * sum(few[path].values()) + 1_000
    }
    assert grown == {}
    assert all(few[path] for path in ("", "search", "parked", "groups", "topics", "audit"))
