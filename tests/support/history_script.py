"""Small histories in a line each. A script is what happens at a correct bridge, then, behind "|", what is changed.

Deeds: `a.p` prepares transaction a, `a.pub` publishes it; `a.c`, `a.r`, `a.u` resolve it (commit, rollback, unknown),
`a.fc` and `a.fr` by an operator; `a.get`, `a.resume`, `a.ask`, `a.ab` (abandon). After a colon, what a
prepare asks for besides:
`a.p:count=2,key=K,order=O,mkey=M,part=1,twin=0,ts=5,imm=9,max=2,group=h`; the bytes are those of `from=b` if said.
A suffix is the call's fate: `?` and `~` applied, but unknown to the client or killed with it; `?0` and `~0` the same,
not applied; `!` refused; `!!` told so, but applied; `=STATE` nothing is done, and 200 with this state is told; `404`.

At the bridge: `a.k:COMMIT` a check is answered (`a.k:COMMIT,lost` the answer never arrives, `a.k` nobody answers),
`a.park`, `block` (commits from now on), `well`, `a.unblock`, `a.abort` (a Kafka transaction with its records),
`a.void`, `a.again` (half message repeated), `a.rewrite` (op message), `foreign`, `count`, `consume`, `+5000` (ms).

Changes: `-part:a` takes a's rows out of a part of the evidence, `-part:a#1` the second of them, `part:a.member=value`
changes them, `no:part` leaves a part out. `rec` is a record at both levels. `copy:a` a record once more, `swap:a,b`
two places (`swapin:a,b` in the partition of a's), `copyof:a` makes what a asked for visible, `leak:a` gives a's aborted
records to a consumer, `split:a,z` doubles a under another id, `alias:part,a,z` its rows in one part, `asked:z` is a
check, `nameless:all` takes the id headers away, `half:a.member=value` and `park:...` change the message in journal and
parked topic, `turn:journal` reverses the order of a part, `stray:x` lets nothing be foreign, `heard:c-2.state=X`
changes an answer, `-heard:a` takes out all calls for a, `-heard:c-2` one call; `allow:pend,block` and
`may:in_flight_ms=5` set the rules, `timeout:h=9000` those of a group, `trouble:orders/CODE` what may be refused.

Topic `orders` is deleted and made again: `gone:a` with a's records, `twice:a` the same, and they are in the new one
too, `flight:a` while they are not committed, `unseen:a` when they came behind all that was read of it, `missed:a` with
records that nobody found, though they must have been there.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from bridge.core.message import Receipt
from tests.support.history.events import Call, Event, Fail, Ok
from tests.support.history.evidence import CheckCall, Evidence, Gone, GroupRules, RealRecord, Rules, Trouble
from tests.support.history.verdict import Verdict, judge
from tests.support.history_model import Ask, Fate, ModelBridge

_CALLS = {
    "c": Call.COMMIT,
    "r": Call.ROLLBACK,
    "u": Call.UNKNOWN,
    "fc": Call.FORCE_COMMIT,
    "fr": Call.FORCE_ROLLBACK,
    "get": Call.GET,
    "resume": Call.RESUME,
    "ask": Call.CHECK,
    "ab": Call.ABANDON,
}
_ASKED = {
    "group": "group",
    "count": "count",
    "mkey": "message_key",
    "order": "ordering_key",
    "key": "idempotency_key",
    "part": "partition",
    "twin": "twin",
    "ts": "timestamp_ms",
    "imm": "immunity_s",
    "max": "max_checks",
}
_DEED = re.compile(r"(\w+)\.([a-z]+)(?::([^?~!\s]+))?(\?0|~0|\?|~|!!|!|404|=[A-Z_]*)?")
_CHANGE = re.compile(r"(\w+):([\w-]+)(?:#(\d+))?\.(\w+)=(.*)")
_REMOVAL = re.compile(r"-(\w+):(\w+)(?:#(\d+))?")
_RECORD_PARTS = ("committed", "uncommitted", "consumed")


class Told(Struct):
    """A history with its evidence, to be changed."""

    events: list[Event]
    parts: dict[str, list[Any]]
    rules: dict[str, Any]
    left_out: set[str]

    def judge(self) -> Verdict:
        """The verdict of the history checker."""
        return judge(self.events, self.evidence(), Rules(**self.rules))

    def evidence(self) -> Evidence:
        """What is left of the parts."""
        kept: dict[str, Any] = {name: None if name in self.left_out else rows for name, rows in self.parts.items()}
        return Evidence(**kept)


def tell(script: str) -> Told:
    """Plays a script."""
    deeds, _, changes = script.partition("|")
    bridge = ModelBridge()
    for deed in deeds.split():
        _play(bridge, deed)
    told = make_told(bridge)
    for change in changes.split():
        _change(told, change)
    return told


def make_told(bridge: ModelBridge) -> Told:
    """What a model bridge tells and leaves behind."""
    evidence = bridge.collect()
    parts = {name: list(getattr(evidence, name) or ()) for name in Evidence.__struct_fields__}
    rules = {"is_foreign": lambda record: record.key == b"foreign"}
    return Told(list(bridge.events), parts, rules, set())


# --- deeds ---


def _play(bridge: ModelBridge, deed: str) -> None:
    if deed.startswith("+"):
        bridge.tick(int(deed))
    elif "." not in deed.partition(":")[0]:
        _play_world(bridge, deed)
    else:
        match = _DEED.fullmatch(deed)
        assert match is not None, deed
        name, act, text, suffix = match.groups()
        _play_deed(bridge, name, act, text or "", suffix or "")


def _play_world(bridge: ModelBridge, deed: str) -> None:
    match deed:
        case "block" | "well":
            bridge.is_blocking = deed == "block"
        case "foreign":
            bridge.write_foreign()
        case "count":
            bridge.count()
        case "consume":
            bridge.consume()
        case _:
            raise AssertionError(deed)


def _play_deed(bridge: ModelBridge, name: str, act: str, text: str, suffix: str) -> None:
    if act in {"p", "pub"} or act in _CALLS:
        _call(bridge, name, act, text, suffix)
        return
    match act:
        case "k":
            answer, _, lost = text.partition(",")
            bridge.check(name, answer or None, arrives=not lost)
        case "void" | "again":
            bridge.repeat_half(name, is_void=act == "void")
        case "park" | "unblock" | "abort" | "rewrite":
            getattr(bridge, act)(name)
        case _:
            raise AssertionError(act)


def _call(bridge: ModelBridge, name: str, act: str, text: str, suffix: str) -> None:
    is_lie = suffix in {"!!", "404"} or suffix.startswith("=")
    fate = Fate.HEARD if is_lie else Fate(suffix)
    if suffix.startswith("=") or suffix == "404":
        fate = Fate.NEVER
    if act in _CALLS:
        nonce = text.removeprefix("nonce=") or None
        bridge.resolve(name, _CALLS[act], fate, nonce)
    else:
        members = dict(pair.split("=", 1) for pair in text.split(",") if pair)
        source = members.pop("from", name)
        ask = Ask(
            **{
                _ASKED[key]: _read(value, key not in {"group", "mkey", "order", "key"})
                for key, value in members.items()
            }
        )
        bridge.prepare(name, ask, fate, is_published=act == "pub", source=source)
    if is_lie:
        bridge.events[-1] = _lie(bridge.events[-1], suffix, bridge, name)


def _lie(event: Event, suffix: str, bridge: ModelBridge, name: str) -> Event:
    if suffix == "404":
        return Fail(event.call_id, event.at_ms, 404, name, problem="unknown-transaction", outcome="not_applied")
    if suffix == "!!":
        return Fail(event.call_id, event.at_ms, 409, name, problem="illegal-topic", outcome="not_applied")
    receipts = bridge.made[name].op.receipts if name in bridge.made and suffix == "=COMMITTED" else ()
    return Ok(event.call_id, event.at_ms, 200, name, suffix[1:] or None, receipts=receipts)


# --- changes ---


def _change(told: Told, change: str) -> None:
    word, _, rest = change.partition(":")
    special = _SPECIAL.get(word)
    if special is not None:
        special(told, rest)
    elif removal := _REMOVAL.fullmatch(change):
        part, name, index = removal.groups()
        for each in parts_of(part):
            chosen = _choose(told.parts[each], name, index)
            told.parts[each] = [row for at, row in enumerate(told.parts[each]) if at not in chosen]
    else:
        _set_member(told, change)


def _forget_calls(told: Told, name: str) -> None:
    """As if the calls for a transaction, or one call, had never been made."""
    ids = {name} | {event.call_id for event in told.events if event.transaction_id == name}
    told.events = [event for event in told.events if event.call_id not in ids]


def _let_refuse(told: Told, text: str) -> None:
    topic, _, problem = text.partition("/")
    told.rules["troubles"] = (Trouble(topic, frozenset({problem}), 1_000_000, 1_100_000),)


def _delete_orders(*levels: str, ends: int = 99, stays: bool = False) -> Callable[[Told, str], None]:
    """`levels`: at which a transaction's records were found in it; `ends`: of both of its partitions."""

    def change(told: Told, name: str) -> None:
        is_own = lambda row: row.transaction_id == name and row.topic == "orders"  # noqa: E731
        rows = {level: [row for row in told.parts[level] if is_own(row)] for level in ("committed", "uncommitted")}
        for part in _RECORD_PARTS if not stays else ():
            told.parts[part] = [row for row in told.parts[part] if not is_own(row)]
        found = {level: rows[level] if level in levels else [] for level in rows}
        told.parts["gone"].append(Gone("orders", 1_000_000, 1_100_000, {0: ends, 1: ends}, **found))

    return change


def _set_rule(told: Told, text: str) -> None:
    name, _, value = text.partition("=")
    told.rules[name] = frozenset({value}) if name == "append_time" else _read(value, True)


def _set_timeout(told: Told, text: str) -> None:
    group, _, timeout_ms = text.partition("=")
    told.rules["groups"] = {group: GroupRules(timeout_ms=int(timeout_ms))}


def _allow(told: Told, names: str) -> None:
    told.rules |= {f"may_{name}": True for name in names.split(",")}


def _leave_out(told: Told, names: str) -> None:
    told.left_out |= set(names.split(","))


def _turn(told: Told, part: str) -> None:
    told.parts[part].reverse()


def _stray(told: Told, _: str) -> None:
    del told.rules["is_foreign"]


def _leak(told: Told, name: str) -> None:
    committed = {record.place for record in told.parts["committed"]}
    own = [record for record in told.parts["uncommitted"] if record.transaction_id == name]
    told.parts["consumed"] += [record for record in own if record.place not in committed]


def show_prepared(told: Told, name: str) -> None:
    """Records of what a transaction asked for, whatever became of it."""
    half = next(row for row in told.parts["journal"] if row.transaction_id == name)
    for number, content in enumerate(half.contents):
        record = RealRecord(
            content.topic, 9, number, half.stored_ms, content.key, content.value, content.headers, name
        )  # fmt: skip
        told.parts["committed"].append(record)
        told.parts["uncommitted"].append(record)


def _split(told: Told, names: str) -> None:
    name, other = names.split(",")
    for part in ("op", "sql", "shown", "journal"):
        rows = told.parts[part]
        rows += [msgspec.structs.replace(row, transaction_id=other) for row in rows if row.transaction_id == name]
    copy_record(told, name)
    for part in ("committed", "uncommitted"):
        told.parts[part][-1] = msgspec.structs.replace(told.parts[part][-1], transaction_id=other)
    told.left_out.add("counts")


def _alias(told: Told, text: str) -> None:
    part, name, other = text.split(",")
    rows = told.parts[part]
    rows += [msgspec.structs.replace(row, transaction_id=other) for row in rows if row.transaction_id == name]


def _ask(told: Told, name: str) -> None:
    told.parts["checks"].append(CheckCall(2_000_000, name, 1, name, answer="UNKNOWN"))


def _drop_ids(told: Told, _: str) -> None:
    for part in _RECORD_PARTS:
        told.parts[part] = [msgspec.structs.replace(row, transaction_id=None) for row in told.parts[part]]


def _set_copy(part: str) -> Callable[[Told, str], None]:
    """Changes the first message that a row of this part holds."""

    def change(told: Told, text: str) -> None:
        name, _, rest = text.partition(".")
        member, _, value = rest.partition("=")
        for at, row in enumerate(told.parts[part]):
            if row.transaction_id == name and getattr(row, "contents", ()):
                first = msgspec.structs.replace(row.contents[0], **{member: _value(row, member, value)})
                told.parts[part][at] = msgspec.structs.replace(row, contents=(first, *row.contents[1:]))

    return change


def _set_member(told: Told, change: str) -> None:
    match = _CHANGE.fullmatch(change)
    assert match is not None, change
    part, name, index, member, text = match.groups()
    if part == "heard":
        told.events = [
            msgspec.structs.replace(event, **{member: _value(event, member, text)})
            if event.call_id == name and hasattr(event, member) and hasattr(event, "status") else event
            for event in told.events
        ]  # fmt: skip
        return
    for each in parts_of(part):
        rows = told.parts[each]
        for at in _choose(rows, name, index):
            rows[at] = msgspec.structs.replace(rows[at], **{member: _value(rows[at], member, text)})


def parts_of(part: str) -> tuple[str, ...]:
    """The parts of the evidence that a change concerns."""
    return _RECORD_PARTS if part == "rec" else (part,)


def copy_record(told: Told, name: str) -> None:
    """The first record of a transaction once more, behind all others of its partition."""
    record: RealRecord = next(row for row in told.parts["committed"] if row.transaction_id == name)
    queue = (record.topic, record.partition)
    end = max(row.offset for row in told.parts["uncommitted"] if (row.topic, row.partition) == queue) + 1
    for part in ("committed", "uncommitted"):
        told.parts[part].append(msgspec.structs.replace(record, offset=end))


def swap_records(told: Told, names: str) -> None:
    """Exchanges the places of the first records of two transactions, and what receipts say of them."""
    first, second = _first_records(told, names)
    _move_all(told, {first.place: second.place, second.place: first.place})


def _swap_inside(told: Told, names: str) -> None:
    """The second one right before the first, in its partition."""
    first, second = _first_records(told, names)
    _move_all(told, {first.place: (*first.place[:2], 99), second.place: first.place})


def _first_records(told: Told, names: str) -> list[RealRecord]:
    return [next(r for r in told.parts["committed"] if r.transaction_id == name) for name in names.split(",")]


def _move_all(told: Told, places: dict[Any, Any]) -> None:
    for part in _RECORD_PARTS:
        told.parts[part] = [_move(record, places) for record in told.parts[part]]
    for part in ("op", "sql", "shown"):
        told.parts[part] = [_point(row, places) for row in told.parts[part]]
    told.events = [_point(event, places) if hasattr(event, "receipts") else event for event in told.events]


def _move(record: RealRecord, places: dict[Any, Any]) -> RealRecord:
    topic, partition, offset = places.get(record.place, record.place)
    return msgspec.structs.replace(record, topic=topic, partition=partition, offset=offset)


def _point(row: Any, places: dict[Any, Any]) -> Any:
    receipts = tuple(Receipt(*places.get((r.topic, r.queue_id, r.queue_offset), (r.topic, r.queue_id, r.queue_offset)))
                     for r in row.receipts)  # fmt: skip
    return msgspec.structs.replace(row, receipts=receipts)


def _choose(rows: list[Any], name: str, index: str | None) -> list[int]:
    members = ("transaction_id", "group", "queue_id")
    found = [at for at, row in enumerate(rows) if name in {str(getattr(row, member, "")) for member in members}]
    return found if index is None else found[int(index) : int(index) + 1]


def _value(row: Any, member: str, text: str) -> Any:
    """The text as what the member holds; `null` is None."""
    if text == "null":
        return None
    if member == "receipts":
        return tuple(Receipt(topic, int(partition), int(offset)) for topic, partition, offset in
                     (place.split("/") for place in text.split(",") if place))  # fmt: skip
    if member in {"key", "value", "headers"}:
        return text.encode()
    return _read(text, member not in {"group", "idempotency_key"})


def _read(text: str, may_be_number: bool) -> Any:
    if text in {"yes", "no"}:
        return text == "yes"
    return int(text) if may_be_number and re.fullmatch(r"-?\d+", text) else text


_SPECIAL: dict[str, Callable[[Told, str], None]] = {
    "no": _leave_out,
    "allow": _allow,
    "may": _set_rule,
    "timeout": _set_timeout,
    "copy": copy_record,
    "swap": swap_records,
    "swapin": _swap_inside,
    "copyof": show_prepared,
    "leak": _leak,
    "split": _split,
    "half": _set_copy("journal"),
    "park": _set_copy("parked"),
    "turn": _turn,
    "alias": _alias,
    "asked": _ask,
    "nameless": _drop_ids,
    "stray": _stray,
    "-heard": _forget_calls,
    "trouble": _let_refuse,
    "gone": _delete_orders("committed", "uncommitted"),
    "twice": _delete_orders("committed", "uncommitted", stays=True),
    "flight": _delete_orders("uncommitted"),
    "unseen": _delete_orders(ends=0),
    "missed": _delete_orders(),
}
