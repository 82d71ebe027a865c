"""The fast decoder of op messages against the strict one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import Receipt
from bridge.core.op_decoding import decode_state
from bridge.core.op_message import OpMessage, decode_op, encode_op
from bridge.core.transaction import Transaction, TransactionState

ID = "00" + "0" * 26
_number = st.integers(0, 2**62)
_maybe = st.none() | _number
_word = st.text("abcXYZ 0-9._", min_size=1, max_size=8)
_ops = st.builds(
    OpMessage,
    st.builds(
        Transaction, st.just(ID), _word, _number, _number, st.just(0), st.sampled_from(TransactionState), _number,
        _number, _number, st.integers(0, 99), st.integers(0, 99), _maybe, _maybe,
        st.none() | st.sampled_from(["producer", "check", "operator", "timer"]), _maybe, _maybe, st.booleans(),
        st.none() | st.text(max_size=8), _maybe, st.lists(_word, max_size=3).map(tuple),
    ),
    st.lists(st.builds(Receipt, _word, _number, _maybe), max_size=3).map(tuple),
)  # fmt: skip


@given(_ops)
def test_both_decoders_agree(op: OpMessage) -> None:
    """Whatever the owner writes, callers hear what a successor would rebuild."""
    value = encode_op(op)
    assert decode_state(ID, value) == decode_op(ID, value)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"", MalformedRecord),
        (b"[]", MalformedRecord),
        (b"not JSON", MalformedRecord),
        (b'{"v":1}', MalformedRecord),
        (b'{"v":1,"state":"GONE","group":"g","at":1,"half":1,"appended_ms":1,"check_times":0}', MalformedRecord),
        (b'{"v":2}', UnknownRecordVersion),
        (
            b'{"v":2,"state":"PREPARED","group":"g","at":1,"half":1,"appended_ms":1,"check_times":0}',
            UnknownRecordVersion,
        ),
    ],
)
def test_what_cannot_be_read(value: bytes, error: type[Exception]) -> None:
    """Malformed and newer ones are told apart, as the strict decoder does."""
    with pytest.raises(error):
        decode_state(ID, value)
