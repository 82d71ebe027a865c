"""Scripts of correct histories, and single corruptions of them with the promise that each breaks."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from tests.support.history.events import MAKING, Call, Fail, Invoke, Ok
from tests.support.history.evidence import COMMITTED, FINAL, PARKED, ROLLED_BACK, CheckCall, HalfRow, OpRow, RealRecord
from tests.support.history_script import Told, copy_record, show_prepared, swap_records

_PREPARES = (
    "p", *("p:mkey=M",) * 4, "p:order=O", "p:order=O", "p:key={n}", "p:count=3", "p:ts=5", "p:part=1", "p:imm=9",
    "p:group=h", "p?", "p~", "p:key={n}?", "p:key={n}~ p:key={n}", "p:key={n} void", "p:key={n} again",
)  # fmt: skip
_PUBLISHES = ("pub", "pub:mkey=M", "pub?", "pub~", "pub:key={n}", "pub:key={n}~ pub:key={n}", "pub:count=2")
_NOTHINGS = ("p!", "p?0", "p~0", "pub!", "pub~0")
_MIDDLES = (
    "", "", "", "get", "u", "abort", "rewrite", "c?0", "r!", "park", "park get resume", "+9000 k:UNKNOWN",
    "+9000 k:UNKNOWN get +30000 k:UNKNOWN", "+9000 k k", "+9000 k:COMMIT,lost",
)  # fmt: skip
_ENDINGS = (
    "", "c", "c", "r", "c?", "c~", "r?", "r~", "c c", "c r", "r c", "c? r?", "fc", "fr", "block c well unblock",
    "+39000 k:COMMIT", "+39000 k:ROLLBACK",
)  # fmt: skip
_AFTERWARDS = ("", "", "get", "c", "r", "rewrite", "again", "get get", "u")
_OF_THE_WORLD = frozenset({"block", "well"})


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """What clients do with a few transactions, mixed, at a correct bridge."""
    waiting = [draw(_lives(name)) for name in "abdefg"[: draw(st.integers(1, 6))]]
    played = []
    while waiting:
        life = waiting[draw(st.integers(0, len(waiting) - 1))]
        played.append(life.pop(0))
        waiting = [life for life in waiting if life]
        played += draw(st.sampled_from(([], [], [], ["foreign"], ["count"], ["consume"])))
    return " ".join(played)


@st.composite
def _lives(draw: st.DrawFn, name: str) -> list[str]:
    """What happens to one transaction, in pieces between which others may come."""
    kind = draw(st.sampled_from((_PREPARES,) * 6 + (_PUBLISHES, _NOTHINGS)))
    pieces = [draw(st.sampled_from(kind))]
    if kind is not _NOTHINGS:
        middle = draw(st.sampled_from(_MIDDLES)) if kind is _PREPARES else ""
        ending = draw(st.sampled_from(_ENDINGS)) if kind is _PREPARES else ""
        if middle == "park" and "k:" in ending:
            ending = "c"  # nobody is asked about a parked one
        pieces += [middle, ending, draw(st.sampled_from(_AFTERWARDS)) if ending or kind is _PUBLISHES else ""]
    return [" ".join(_name(name, word) for word in piece.split()) for piece in pieces if piece]


def _name(name: str, word: str) -> str:
    is_deed = word not in _OF_THE_WORLD and not word.startswith("+")
    return f"{name}.{word.format(n=name)}" if is_deed else word


Corruption = Callable[[Told], None]
Choice = tuple[str, str, Corruption]
"""Name, letter of the promise that must be found broken, what to do."""


def corruptions(told: Told) -> Iterator[Choice]:
    """All single corruptions that this history can have."""
    ops = {row.transaction_id: row for row in told.parts["op"]}
    halves: dict[str, HalfRow] = {}
    for row in told.parts["journal"]:
        if isinstance(row, HalfRow) and not row.is_void:
            halves.setdefault(row.transaction_id, row)
    making = {event.call_id for event in told.events if isinstance(event, Invoke) and event.call in MAKING}
    acked = {event.transaction_id for event in told.events if isinstance(event, Ok) and event.call_id in making}
    for record in told.parts["committed"]:
        if record.transaction_id is not None:
            yield from _of_record(told, record)
    for name, half in halves.items():
        yield from _of_transaction(name, half, ops.get(name), is_acked=name in acked)
    yield from _of_answers(told, halves, ops)
    yield from _of_order(told, halves, ops)
    for number in range(len(told.parts["counts"])):
        yield "counts", "C", _edit("counts", number, lambda row: {"prepared": row.prepared + 1})
    visible = {record.place for record in told.parts["committed"]}
    for record in told.parts["uncommitted"]:
        if record.place not in visible and record.transaction_id is not None:
            yield "aborted record consumed", "P", _consume(record)


def _of_record(told: Told, record: RealRecord) -> Iterator[Choice]:
    name = record.transaction_id or ""

    def change(**members: object) -> Corruption:
        return lambda told: _replace_record(told, record, members)

    yield "record dropped", "L", lambda told: _replace_record(told, record, None)
    yield "record copied", "D", lambda told: copy_record(told, name)
    yield "value flipped", "I", change(value=b"\x00" + (record.value or b"")[1:])
    yield "key flipped", "I", change(key=b"" if record.key is None else None)
    yield "headers flipped", "I", change(headers=record.headers[:-1] + b"~")
    yield "timestamp changed", "I", change(timestamp_ms=record.timestamp_ms + 1)


def _of_transaction(name: str, half: HalfRow, op: OpRow | None, *, is_acked: bool) -> Iterator[Choice]:
    state = "PREPARED" if op is None else op.state
    other = ROLLED_BACK if state == COMMITTED else COMMITTED
    for part in ("sql", "shown"):
        yield f"{part} says another state", "F", _edit_named(part, name, {"state": other})
    yield "not in SQL", "S" if is_acked else "A", _drop("sql", name)
    if is_acked or op is not None:
        yield "not in the journal", "S" if is_acked else "F", _drop("journal", name)
    if state in FINAL:
        yield "op says another end", "F", _edit_named("op", name, {"state": other})
        yield "not in the op topic", "F", _drop("op", name)
        yield "check after the end", "K", _ask(name, half, half.stored_ms + 10_000_000)
    if state != COMMITTED:
        yield "visible all the same", "P", lambda told: show_prepared(told, name)
    if state == PARKED:
        yield "parked message gone", "S", _drop("parked", name)
    yield "check at once", "K", _ask(name, half, half.stored_ms + 1)


def _of_answers(told: Told, halves: dict[str, HalfRow], ops: dict[str, OpRow]) -> Iterator[Choice]:
    """Answers to ends: another state; a refusal of the only one that can have led to the end."""
    invokes = {event.call_id: event for event in told.events if isinstance(event, Invoke)}
    for number, event in enumerate(told.events):
        invoke = invokes[event.call_id]
        name = event.transaction_id or ""
        if not isinstance(event, Ok) or name not in ops or ops[name].state not in FINAL or invoke.call is Call.GET:
            continue
        if event.state in FINAL and invoke.call is not Call.PREPARE:
            other = ROLLED_BACK if event.state == COMMITTED else COMMITTED
            yield "answer tells the other end", "F", _edit_event(number, msgspec.structs.replace(event, state=other))
        if not halves[name].is_published and _is_only_cause(told, invoke, ops[name]):
            refused = Fail(event.call_id, event.at_ms, 409, name, problem="illegal-topic", outcome="not_applied")
            yield "end refused though applied", "A", _edit_event(number, refused)


def _is_only_cause(told: Told, invoke: Invoke, op: OpRow) -> bool:
    wanted = {Call.COMMIT: COMMITTED, Call.ROLLBACK: ROLLED_BACK}.get(invoke.call)
    same = [e for e in told.events if isinstance(e, Invoke) and e.transaction_id == op.transaction_id]
    others = [e for e in same if e.call in {invoke.call, Call.FORCE_COMMIT, Call.FORCE_ROLLBACK}]
    checked = any(c.transaction_id == op.transaction_id and c.answer is not None for c in told.parts["checks"])
    return wanted == op.state and len(others) == 1 and not checked


def _of_order(told: Told, halves: dict[str, HalfRow], ops: dict[str, OpRow]) -> Iterator[Choice]:
    """Neighbours of one ordering key in one partition."""
    keys: dict[object, str] = {}
    for record in told.parts["committed"]:
        half = halves.get(record.transaction_id or "")
        if half is None:
            continue
        key = half.contents[0].key if half.ordering_key is None else half.ordering_key.encode()
        before = keys.get((key, record.topic, record.partition))
        if before is not None and before != half.transaction_id and key is not None and len(half.contents) == 1:
            names = f"{before},{half.transaction_id}"
            if len(halves[before].contents) == 1:
                yield "two of one key swapped", "O", _swap(names)
        keys[key, record.topic, record.partition] = half.transaction_id


def _replace_record(told: Told, record: RealRecord, members: dict[str, object] | None) -> None:
    for part in ("committed", "uncommitted", "consumed"):
        rows: Sequence[RealRecord] = told.parts[part]
        if members is None:
            told.parts[part] = [row for row in rows if row.place != record.place]
        else:
            told.parts[part] = [msgspec.structs.replace(r, **members) if r.place == record.place else r for r in rows]


def _edit(part: str, number: int, change: Callable[[Any], dict[str, object]]) -> Corruption:
    def corrupt(told: Told) -> None:
        row = told.parts[part][number]
        told.parts[part][number] = msgspec.structs.replace(row, **change(row))

    return corrupt


def _edit_named(part: str, name: str, members: dict[str, object]) -> Corruption:
    """The last row of a transaction."""

    def corrupt(told: Told) -> None:
        at = max(at for at, row in enumerate(told.parts[part]) if row.transaction_id == name)
        told.parts[part][at] = msgspec.structs.replace(told.parts[part][at], **members)

    return corrupt


def _drop(part: str, name: str) -> Corruption:
    def corrupt(told: Told) -> None:
        told.parts[part] = [row for row in told.parts[part] if row.transaction_id != name]

    return corrupt


def _ask(name: str, half: HalfRow, at_ms: int) -> Corruption:
    return lambda told: told.parts["checks"].append(CheckCall(at_ms, name, 1, "corrupt", half.group))


def _edit_event(number: int, event: Ok | Fail) -> Corruption:
    def corrupt(told: Told) -> None:
        told.events[number] = event

    return corrupt


def _consume(record: RealRecord) -> Corruption:
    return lambda told: told.parts["consumed"].append(record)


def _swap(names: str) -> Corruption:
    return lambda told: swap_records(told, names)
