"""A check endpoint of the shop: the ready-made handler in a web application of its own.

python -m tests.kills.checks RUN_FILE NAME PORT
"""

import sys
from collections.abc import Sequence

import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI

from outbox import Check, Resolution
from outbox.asgi import CheckApp
from outbox.check_handler import Answer, CheckHandler
from outbox.client.checks import Tell
from outbox.transaction_record import TransactionRecord
from tests.kills.planted import MISSING_COMMITTED
from tests.kills.run_file import RECORDS, RunFile

PATH = "/outbox-checks/"


def main() -> None:
    """Serves until it is killed."""
    app = FastAPI()
    run = RunFile.read(sys.argv[1])
    app.mount(PATH.rstrip("/"), CheckApp(CheckHandler([run.secret], _make_answer(run))))
    uvicorn.run(app, port=int(sys.argv[3]), log_level="warning")


def _make_answer(run: RunFile) -> Answer:
    look_up = TransactionRecord(RECORDS).answers(sa.create_engine(run.database_url))
    if run.planted != MISSING_COMMITTED:
        return look_up

    def answer(checks: Sequence[Check], tell: Tell) -> None:
        look_up(checks, lambda check, told: tell(check, Resolution.COMMIT if told is Resolution.ROLLBACK else told))

    return answer


if __name__ == "__main__":
    main()
