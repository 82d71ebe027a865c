"""Named crash points: places between two effects where a kill is most likely to hurt.

A point in the code is one line, `reach(FaultPoint.SETTLE_READ)`, and does nothing unless its process is to die there.
Then the process ends at the n-th passing as if killed: no `finally`, no flush. Only shells have points.
"""

import difflib
import itertools
import os
from enum import Enum, unique
from typing import NamedTuple

from bridge.core.errors import ConfigError

EXIT_KILLED = 137  # a shell's exit code of a process that SIGKILL ended

_API, _SETTLER, _PROJECTOR, _EVERY = "api", "settler", "projector", "api, settler, projector"


@unique
class FaultPoint(Enum):
    """Every point, with who passes it and what has happened by then."""

    GROUP_CREATED = (_API, "The group of its first prepare was created; the half message is not appended.")
    PREPARE_LOOKED_UP = (_API, "An idempotency key was looked up; its half message is not appended.")
    PREPARE_UNSENT = (_API, "Half messages are encoded and their waiters registered; nothing is appended.")
    PREPARE_ACKED = (_API, "Half messages are in the journal; the caller has no answer.")
    PREPARE_HEARD = (_API, "A settler has answered keyed half messages; the caller has no answer.")

    APPEND_HANDED_OVER = ("api, settler", "Journal records were handed to the Kafka client; no report has come.")
    APPEND_REPORTED = ("api, settler", "Kafka has acknowledged journal records; nobody but the client knows.")

    END_UNSENT = (_API, "End records are encoded and their waiters registered; nothing is appended.")
    END_ACKED = (_API, "End records are in the journal; no settler has answered.")
    END_HEARD = (_API, "Ends are settled and heard of; the caller has no answer.")

    ACT_AUDITED = (_API, "An operator's act is in the audit; it is not appended.")
    ACT_ACKED = (_API, "An operator's act is in the journal; neither answer nor second audit entry exists.")
    REDRIVE_ACTED = (_API, "A page of a redrive job was acted on; the job's row still stands before it.")
    CHECKS_CLAIMED = (_API, "Due checks are leased to a caller in SQL; the caller has no answer.")
    DIRECTORY_WRITTEN = (_API, "A group's change and its audit entry are written; SQL COMMIT is not sent.")
    DIRECTORY_COMMITTED = (_API, "A group's change is committed in SQL; the caller has no answer.")

    SETTLE_READ = (_SETTLER, "Records were read from the journal; nothing is decided.")
    SETTLE_DECIDED = (_SETTLER, "Records are decided in memory; nothing is written.")
    SETTLE_SENT_REAL = (_SETTLER, "Committed messages are in their real topics; no op message is sent.")
    SETTLE_SENT_ALL = (_SETTLER, "Real records, op messages and position are sent; EndTxn is not.")
    SETTLE_COMMITTED = (_SETTLER, "EndTxn of a settled batch was sent; nothing of ours has read its outcome.")

    ABORT_CLEAN = (_SETTLER, "A batch was refused and its Kafka transaction aborted; nothing is decided yet.")
    BLOCK_SENT_ALL = (_SETTLER, "Op messages of blocked commits are sent after an abort; EndTxn is not.")
    BLOCK_COMMITTED = (_SETTLER, "EndTxn of blocked commits was sent; nothing of ours has read its outcome.")
    RETRY_SENT_REAL = (_SETTLER, "Messages of a blocked commit are in their topics; its op message is not sent.")
    RETRY_SENT_ALL = (_SETTLER, "Everything of a blocked commit's publication is sent; EndTxn is not.")
    RETRY_COMMITTED = (_SETTLER, "EndTxn of a blocked commit's publication was sent; its outcome is unread.")

    PARK_CHOSEN = (_SETTLER, "The checker has given transactions up; the queue's owner has written nothing.")
    PARK_SENT_COPY = (_SETTLER, "Parked copies are sent; their op messages are not.")
    PARK_SENT_ALL = (_SETTLER, "Parked copies and their op messages are sent; EndTxn is not.")
    PARK_COMMITTED = (_SETTLER, "EndTxn of parked transactions was sent; nothing of ours has read its outcome.")

    CARRY_SENT_ALL = (_SETTLER, "States carried forward and the new L and O are sent; EndTxn is not.")
    CARRY_COMMITTED = (_SETTLER, "EndTxn of states carried forward was sent; nothing of ours has read its outcome.")
    POSITION_SENT_ALL = (_SETTLER, "A position without effects is sent; EndTxn is not.")
    POSITION_COMMITTED = (_SETTLER, "EndTxn of a position without effects was sent; its outcome is unread.")

    TAKE_OVER_BEGUN = (_SETTLER, "A queue was assigned; its last owner is not fenced.")
    TAKE_OVER_HALF_FENCED = (_SETTLER, "One of the queue's two producers is initialised, the other is not.")
    TAKE_OVER_FENCED = (_SETTLER, "Both producers are initialised; nothing is read back.")
    TAKE_OVER_READ_POSITION = (_SETTLER, "The last position is known; no state is read back.")
    TAKE_OVER_READ_OP = (_SETTLER, "Op messages from O are read back; the journal is not.")
    TAKE_OVER_READ_JOURNAL = (_SETTLER, "Everything is read back; no position of the new owner is written.")
    TAKE_OVER_SENT_ALL = (_SETTLER, "The new owner's first position is sent; EndTxn is not.")
    TAKE_OVER_COMMITTED = (_SETTLER, "EndTxn of the new owner's first position was sent; its outcome is unread.")

    CHECK_PICKED = (_SETTLER, "Due transactions were picked for a round; nobody is called.")
    CHECK_SIGNED = (_SETTLER, "A check is signed and about to be sent; nobody is called.")
    CHECK_ANSWERED = (_SETTLER, "An endpoint has answered; no answer is appended.")
    CHECK_APPENDED = (_SETTLER, "Answers of one endpoint are appended; the rest of the round is still open.")
    CHECKS_LAID = (_SETTLER, "Due checks lie ready to be fetched in SQL; the checker has taken no note of it.")
    CHECK_UNANSWERED = (_SETTLER, "A round got no answer; it is not noted in SQL.")

    PROJECT_READ = (_PROJECTOR, "A chunk of the logs is read; no row is written.")
    PROJECT_WRITTEN = (_PROJECTOR, "Rows and position of a chunk are written; SQL COMMIT is not sent.")
    PROJECT_COMMITTED = (_PROJECTOR, "A chunk is committed in SQL; the projector does not know.")

    START_CHECKED = (_EVERY, "Tables and internal topics are as they must be; no part is started.")
    START_LOOPS = (_EVERY, "All parts of the process are started; it does not listen.")

    REBUILD_CLEARED = ("projection rebuild", "The projection is empty; nothing is read again.")
    REBUILD_STEPPED = ("projection rebuild", "One more step of each queue is in SQL; Kafka is not read to its end.")
    REBUILD_READ = ("projection rebuild", "Everything is read again; orphans are not counted.")

    MIGRATE_WRITTEN = ("migrate", "All tables are made; SQL COMMIT is not sent.")
    MIGRATE_COMMITTED = ("migrate", "All tables are there; no internal topic is.")
    MIGRATE_TOPIC_CREATED = ("migrate", "One more internal topic is there; the others may be missing.")
    MIGRATE_TOPICS_CREATED = ("migrate", "All internal topics are there; the database does not know them.")
    MIGRATE_RECORDED = ("migrate", "The database knows the internal topics; nothing is verified.")

    @property
    def role(self) -> str:
        """The process that passes it: roles of `serve`, or a command."""
        return self.value[0]

    @property
    def meaning(self) -> str:
        """What has happened when it is passed, and what has not."""
        return self.value[1]


class ArmedFault(NamedTuple):
    """Where this process is to die: at the `passing`-th time, counted from 1."""

    point: FaultPoint
    passing: int


_armed: ArmedFault | None = None
_passings = itertools.count(1)  # of that point, in several threads: the next number is taken in one step


def reach(point: FaultPoint) -> None:
    """Ends the process here if it was armed for this passing; next to nothing otherwise."""
    if _armed is not None and point is _armed.point and next(_passings) == _armed.passing:
        os._exit(EXIT_KILLED)


def parse_fault(text: str) -> ArmedFault:
    """`NAME`, or `NAME:n` for the n-th passing. Raises ConfigError, which names the nearest points."""
    name, _, passing = text.partition(":")
    if name not in FaultPoint.__members__:
        near = difflib.get_close_matches(name.upper().replace("-", "_"), FaultPoint.__members__, 3, cutoff=0.4)
        hint = f"; did you mean {', '.join(near)}?" if near else "; see outbox-bridge fault-points"
        raise ConfigError(f"unknown fault point {name!r}{hint}")
    if passing == "" and ":" not in text:
        return ArmedFault(FaultPoint[name], 1)
    if not (passing.isascii() and passing.isdigit() and int(passing) > 0):
        raise ConfigError(f"fault point {name} is to be passed {passing!r} times; that must be a number from 1")
    return ArmedFault(FaultPoint[name], int(passing))


def arm(fault: ArmedFault) -> None:
    """From now on this process dies there. For tests of crashes; nothing disarms it."""
    global _armed  # noqa: PLW0603 - one process, one death
    _armed = fault
