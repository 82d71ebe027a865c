"""One record of an internal topic -> what it says, as strict as the bridge's own codecs, with no code of theirs.

What they refuse is UNREADABLE here; what their settlers halt at is of another version. The formats are those of
`docs/records.md`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from struct import iter_unpack
from typing import Annotated, Literal, NamedTuple

import msgspec

from spark.read.envelope import (
    ACT_ABANDON,
    ACT_CHECK,
    ACT_RESUME,
    COMMIT,
    EMPTY,
    OTHER_VERSION,
    ROLLBACK,
    UNKNOWN,
    EndSource,
    Evidence,
    OpState,
)

Headers = Sequence[tuple[str, bytes | None]]
Properties = dict[str, str]

is_id = re.compile("[0-9a-v]{27}[048cgkos]").fullmatch
_is_group = re.compile("[A-Za-z0-9._-]{1,120}").fullmatch
_is_hash = re.compile("[0-9a-f]{16}").fullmatch
_is_count = re.compile("-?[0-9]{1,9}").fullmatch
_is_digits = re.compile("-?[0-9]{1,19}").fullmatch
_match_topic = re.compile("[a-zA-Z0-9._-]{1,249}").fullmatch
_MAX_REMARK = 512  # characters, as at the bridge's door; what others write may be of any length
_CODES = {"8": COMMIT, "12": ROLLBACK, "0": UNKNOWN}
_ACTS = {"RESUME": ACT_RESUME, "ABANDON": ACT_ABANDON, "CHECK": ACT_CHECK}
SOURCES = {"P": EndSource.PRODUCER, "C": EndSource.CHECK, "O": EndSource.OPERATOR}


def _is_long(text: str) -> bool:
    return _is_digits(text) is not None and -(1 << 63) <= int(text) < 1 << 63


def _is_topic(text: str) -> bool:
    return _match_topic(text) is not None and text not in {".", ".."}


class _Form(NamedTuple):
    """What a kind of record must say, and how it is written; what is not known is passed over."""

    needed: frozenset[str]
    written: Mapping[str, Callable[[str], object]]


_HALF_FORM = _Form(
    frozenset({"UNIQ_KEY", "PGROUP", "N", "BORN"}),
    {
        "UNIQ_KEY": is_id,
        "PGROUP": _is_group,
        "N": lambda text: _is_count(text) and int(text) > 0,
        "OKEY": _is_hash,
        **dict.fromkeys(("BORN", "TS", "SEEN"), _is_long),
        **dict.fromkeys(("CHECK_IMMUNITY_TIME_IN_SECONDS", "MAX_CHECKS", "MAX_LIFE"), _is_count),
    },
)
JOURNAL_FORMS = {
    "H": _HALF_FORM,
    "E": _Form(
        frozenset({"UNIQ_KEY", "RES", "SRC", "BORN"}),
        {
            "UNIQ_KEY": is_id,
            "RES": _CODES.__contains__,
            "SRC": SOURCES.__contains__,
            "BORN": _is_long,
            **dict.fromkeys(("TRANSACTION_CHECK_TIMES", "STATUS", "LATENCY"), _is_count),
        },
    ),
    "A": _Form(frozenset({"UNIQ_KEY", "ACT", "ACTOR", "REASON", "BORN"}), {"UNIQ_KEY": is_id, "BORN": _is_long}),
}
PARKED_FORMS = {"H": _HALF_FORM, "D": _HALF_FORM}

_Count = Annotated[int, msgspec.Meta(ge=-999_999_999, le=999_999_999)]
_Long = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class PreparedFrame(msgspec.Struct, gc=False):
    """One of several prepared messages."""

    topic: str
    qid: _Count
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    ts: _Long | None


class ToldReceipt(msgspec.Struct, gc=False, array_like=True):
    topic: str
    part: _Count
    off: _Long | None


class OpMembers(msgspec.Struct, gc=False):
    v: int
    state: Literal["PREPARED", "COMMITTED", "ROLLED_BACK", "PARKED"]
    group: str
    at: _Long
    half: _Long
    appended_ms: _Long
    check_times: _Count
    okey: str = "0"
    since_ms: _Long | None = None
    next_due_ms: _Long = 0
    base: _Count = 0
    max_checks: _Count | None = None
    max_life: _Count | None = None
    by: str | None = None
    end: _Long | None = None
    ended_ms: _Long | None = None
    blocked: bool = False
    why: str | None = None
    parked: _Long | None = None
    requests: tuple[str, ...] = ()
    receipts: tuple[ToldReceipt, ...] = ()
    abandoned: bool = False

    def __post_init__(self) -> None:
        int(self.okey, 16)


class PositionMembers(msgspec.Struct, gc=False):
    v: int
    s: _Long
    l: _Long  # noqa: E741 - the name of the format
    o: _Long
    owner: str
    s_ms: _Long | None = None
    topics: "TopicMembers | None" = None
    start: "StartMembers | None" = None


class TopicMembers(msgspec.Struct, gc=False):
    half: str
    op: str
    parked: str


class StartMembers(msgspec.Struct, gc=False):
    journal: _Long
    op: _Long


class AnswerMembers(msgspec.Struct, gc=False):
    request: str
    id: str
    answer: Literal["UNKNOWN_TRANSACTION", "ALREADY", "GROUP_MISMATCH", "NOT_PARKED", "BODY_EXPIRED"]
    op: OpMembers | None = None


class AnswersMembers(msgspec.Struct, gc=False):
    v: int
    answers: list[AnswerMembers]


class VersionMember(msgspec.Struct, gc=False):
    v: int = 0


_decode_frames = msgspec.json.Decoder(list[PreparedFrame]).decode
_decode_state = msgspec.json.Decoder(OpMembers).decode
_decode_position = msgspec.json.Decoder(PositionMembers).decode
_decode_answers = msgspec.json.Decoder(AnswersMembers).decode
_decode_version = msgspec.json.Decoder(VersionMember).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # what JSON that is none raises


def is_known(p: Properties) -> bool:
    return is_id(p.get("UNIQ_KEY", "")) is not None


def read_properties(headers: Headers) -> Properties:
    """Of a record that has no such form nothing, or the id where it stands in a record that has."""
    if not headers:
        return {}
    name, value = headers[-1]
    if name != "properties" or value is None or not value.startswith(b"KIND\x01"):
        return {}
    try:
        text = value.decode()
        *pairs, rest = text.split("\x02")
        properties: Properties = dict([pair.split("\x01") for pair in pairs])
    except ValueError:
        properties, pairs, rest, text = {}, [], "", ""
    if rest or not pairs or len(properties) != len(pairs) or "\x00" in text:
        return {"UNIQ_KEY": value[16:44].decode(errors="replace")}
    return properties


def read_messages(
    p: Properties, key: bytes | None, value: bytes | None, headers: Headers
) -> Sequence[PreparedFrame] | None:
    """At least one; None if there are none, or not as many as announced."""
    if p.get("KIND") not in PARKED_FORMS:
        return None
    announced = read_count(p.get("N"))
    if announced == 1:
        topic, part, ts = p.get("REAL_TOPIC", ""), read_count(p.get("REAL_QID")), read_number(p.get("TS"))
        if part is None or not _is_topic(topic):
            return None
        return (PreparedFrame(topic, part, key, value, tuple(headers[:-1]), ts),)
    try:
        frames = _decode_frames(value or b"")
    except _UNREADABLE:
        return None
    return frames if frames and len(frames) == announced and all(_is_topic(frame.topic) for frame in frames) else None


def judge(p: Properties, has_messages: bool, forms: Mapping[str, _Form]) -> tuple[int, int]:
    """The leg, and the code. What a settler would halt at, an act that it does not know too, is another version."""
    kind = p.get("KIND")
    if kind is None:
        return Evidence.UNREADABLE, UNKNOWN
    is_other_act = kind == "A" and is_known(p) and p.get("ACT", "CHECK") not in _ACTS
    if p.get("V") != "1" or kind not in forms or is_other_act:
        return Evidence.UNREADABLE, OTHER_VERSION
    if not p.keys() >= forms[kind].needed or not _are_written(p, forms[kind].written):
        return Evidence.UNREADABLE, UNKNOWN
    if kind == "A":
        return Evidence.ACT, _ACTS[p["ACT"]]
    if kind == "E":
        return Evidence.END, _CODES[p["RES"]]
    return Evidence.HALF if has_messages else Evidence.UNREADABLE, COMMIT if p.get("RES") == "8" else UNKNOWN


def _are_written(p: Properties, forms: Mapping[str, Callable[[str], object]]) -> bool:
    for name, text in p.items():  # a loop that is half of what reading a record's properties takes
        is_written = forms.get(name)
        if is_written is not None and not is_written(text):
            return False
    return True


def read_remark(text: str | None) -> str | None:
    """As much of it as the bridge takes."""
    return None if text is None else text[:_MAX_REMARK]


def read_number(text: str | None) -> int | None:
    return int(text) if text is not None and _is_long(text) else None


def read_count(text: str | None) -> int | None:
    return int(text) if text is not None and _is_count(text) else None


def read_seconds(text: str | None) -> int | None:
    """In milliseconds."""
    number = read_count(text)
    return None if number is None else number * 1_000


_MIX, _WORD = 0x5BD1E995, (1 << 32) - 1
_LONGEST_KEY = 1_024  # bytes; of longer ones it takes too long


def read_spread(key: bytes | None) -> int | None:
    """What the partition of a record is chosen by, of its key: 31 bits of murmur2, as of Java clients."""
    return None if key is None or len(key) > _LONGEST_KEY else _spread(key)


@lru_cache(1 << 16)
def _spread(key: bytes) -> int:
    state, whole = 0x9747B28C ^ len(key), len(key) & ~3
    for (word,) in iter_unpack("<I", key[:whole]):
        mixed = word * _MIX & _WORD
        state = state * _MIX & _WORD ^ (mixed ^ mixed >> 24) * _MIX & _WORD
    if whole < len(key):
        state = (state ^ int.from_bytes(key[whole:], "little")) * _MIX & _WORD
    state = (state ^ state >> 13) * _MIX & _WORD
    return (state ^ state >> 15) & 0x7FFFFFFF


class OpRow(NamedTuple):
    """`op`: of a state; `s`, `start`: of a position."""

    leg: int
    code: int | None = None
    op: OpMembers | None = None
    s: int | None = None
    start: StartMembers | None = None


_STATES = {"PREPARED": OpState.PREPARED, "PARKED": OpState.PARKED, "ROLLED_BACK": OpState.ROLLED_BACK}


def read_op(key: bytes | None, value: bytes | None) -> OpRow:
    if value is None:
        return OpRow(Evidence.UNREADABLE, EMPTY)
    try:
        if key == b"~":
            position = _decode_position(value)
            return OpRow(Evidence.POSITION, s=position.s, start=position.start) if position.v == 1 else _OTHER
        if key == b"?":
            return OpRow(Evidence.ANSWERS) if _decode_answers(value).v == 1 else _OTHER
        if key is None or not is_id(key.decode(errors="replace")):
            return OpRow(Evidence.UNREADABLE)
        op = _decode_state(value)
        if b"\\" in value:
            _check_names(op)
    except _UNREADABLE:
        return _OTHER if _is_other_version(value) else OpRow(Evidence.UNREADABLE)
    return OpRow(Evidence.OP, _state(op), op) if op.v == 1 else _OTHER


_ESCAPED = re.compile('["\\\\\\x00-\\x1f]')


def _check_names(op: OpMembers) -> None:
    """Settlers write group, cause and topics as they are."""
    if any(_ESCAPED.search(name) for name in (op.group, op.by or "", *[receipt.topic for receipt in op.receipts])):
        raise msgspec.ValidationError("a name that is none")


_OTHER = OpRow(Evidence.UNREADABLE, OTHER_VERSION)


def _is_other_version(value: bytes) -> bool:
    """Which may look different in everything but its number."""
    try:
        return _decode_version(value).v != 1
    except _UNREADABLE:
        return False


def _state(op: OpMembers) -> int:
    if op.state != "COMMITTED":
        return _STATES[op.state]
    return OpState.ABANDONED if op.abandoned else OpState.BLOCKED if op.blocked else OpState.COMMITTED
