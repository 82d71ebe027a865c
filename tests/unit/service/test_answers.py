"""Refusals that are the same wherever they are given."""

from hypothesis import given
from hypothesis import strategies as st

from bridge.core.grants import Grant, Rights, Verb
from bridge.core.record import Resolution, Source
from bridge.core.transaction import TransactionState, TransactionView
from bridge.service.contract import EndCall, Outcome, RefusalCode, Refused, refuse_given_up, refuse_missing
from bridge.service.end import scope_end, scope_ends
from bridge.service.journal import refuse_put
from bridge.store.message_store import PutResult, PutStatus, Refusal

ID = "0" * 28
LOST_MS = 1_750_000_000_000


def test_given_up_is_neither_not_applied_nor_unknown() -> None:
    """No log will ever say what became of it; when it was given up, and how it was last seen, is all there is."""
    view = TransactionView(ID, "shop", TransactionState.PREPARED, 0, 5, 0, 0, given_up_ms=LOST_MS)
    seen, unseen = refuse_given_up(view), refuse_missing(ID, LOST_MS)
    for refused, state in ((seen, TransactionState.PREPARED), (unseen, None)):
        assert (refused.code, refused.outcome) == (RefusalCode.GIVEN_UP, None)
        assert (refused.transaction_id, refused.state) == (ID, state)
        assert "2025-06-15T15:06:40.000Z" in refused.detail
        assert "this call has changed nothing" in refused.detail
    assert "last seen PREPARED" in seen.detail


def test_unknown_one_was_not_changed() -> None:
    """Nothing was lost that could have held it."""
    refused = refuse_missing(ID)
    assert (refused.code, refused.outcome) == (RefusalCode.UNKNOWN_TRANSACTION, Outcome.NOT_APPLIED)
    assert (refused.transaction_id, refused.state) == (ID, None)


def test_put_into_a_halted_queue_says_why_and_of_which() -> None:
    """An operator is needed: there is no hurry to try again."""
    halted = PutResult(PutStatus.REFUSED, refusal=Refusal.HALTED, detail="the log was lost")
    expected = Refused(RefusalCode.UNAVAILABLE, "the log was lost", transaction_id=ID, retry_after_s=10)
    assert refuse_put(halted, ID) == expected


_NAMES = st.sampled_from(["shop", "store"])
_GRANTS = st.lists(st.builds(Grant, st.sampled_from(Verb), _NAMES | st.sampled_from(["s*", "*"])), max_size=4)
_ENDS = st.builds(EndCall, st.just(ID), st.just(Resolution.COMMIT), st.none() | _NAMES, st.sampled_from(Source))


@given(_GRANTS, st.lists(_ENDS, max_size=5))
def test_ends_of_a_batch_are_scoped_as_single_ones(grants: list[Grant], ends: list[EndCall]) -> None:
    """In the name of a group for which the caller may decide, or refused."""
    rights = Rights(grants)
    scoped = scope_ends(rights, ends)
    assert scoped == [scope_end(rights, end) for end in ends]
    for asked, found in zip(ends, scoped, strict=True):
        verb = Verb.CHECK if asked.source is Source.CHECK else Verb.DECIDE
        if isinstance(found, EndCall) and not rights.may_everywhere(verb):
            assert found.group is not None
            assert rights.may(verb, found.group)
