"""The history checker on refusals, unknown outcomes and what was forgotten or never ended."""

from tests.support.history_cases import check_kinds, history_cases

HONESTY = """
prepare refused, nothing there
    a.p!
prepare refused, pending all the same
    a.p!! | allow:pend => FALSE_REFUSAL
prepare refused, visible
    a.p!! a.fc | -heard:c-2 => FALSE_REFUSAL
keyed prepare refused, parked in the end
    a.p:key=K!! +6000 a.park => FALSE_REFUSAL
prepare refused, then repeated with success
    a.p:key=K! a.p:key=K a.c
prepare of unknown outcome, repeat refused
    a.p:key=K? a.p:key=K! +6000 a.k:COMMIT
prepare refused though applied, its repeat was told so
    a.p:key=K!! a.p:key=K a.c
the same bytes refused once, accepted under another id
    a.p! b.p:from=a b.c
publish refused, visible
    a.pub!! => FALSE_REFUSAL
publish refused, only aborted
    a.pub! b.p b.abort b.c
commit refused, committed all the same
    a.p a.c!! => FALSE_REFUSAL
commit refused, committed by a check
    a.p a.c! +6000 a.k:COMMIT
commit refused, then repeated with success
    a.p a.c! a.c
commit refused, another one unknown
    a.p a.c! a.c?
commit refused, rolled back by a check
    a.p a.c! +6000 a.k:ROLLBACK
rollback refused, rolled back all the same
    a.p a.r!! => FALSE_REFUSAL
rollback refused, rolled back by an operator
    a.p a.r! a.fr
rolled back by nobody
    a.p a.r | -heard:c-2 => CONTRADICTION
rolled back by a check
    a.p +6000 a.k:ROLLBACK
force refused, applied all the same
    a.p a.park a.fc!! => FALSE_REFUSAL
commit refused as already resolved, and committed is what it wanted
    a.p a.c a.c! => FALSE_ACCEPT
commit told 200, nothing happened
    a.p a.c=COMMITTED | allow:pend => LOST CONTRADICTION FALSE_ACCEPT
rollback told 200, nothing happened
    a.p a.r=ROLLED_BACK | allow:pend => CONTRADICTION FALSE_ACCEPT
commit told 200 with PREPARED
    a.p a.c=PREPARED a.c => FALSE_ACCEPT
one id for two contents
    a.p:key=K a.p:key=K,from=b a.c => MIXTURE
one id for two groups
    a.p:key=K a.p:key=K,group=h a.c => MIXTURE
one key for two contents, both accepted
    a.p:key=K b.p:key=K a.c b.r => MIXTURE
one key for two contents, the second refused
    a.p:key=K b.p:key=K! a.c
one key for two kinds of call with the same bytes, both accepted
    a.p:key=K b.pub:key=K,from=a a.r => TWICE_PREPARED
2xx without an id
    a.p a.c | heard:c-1.transaction_id=null => FALSE_ACCEPT
"""

UNKNOWN = """
prepare unknown, not applied
    a.p?0
prepare unknown, applied, rolled back by a check
    a.p? +6000 a.k:ROLLBACK
prepare of a killed client, applied, left pending
    a.p~ => UNSETTLED
prepare of a killed client, applied, may pend
    a.p~ | allow:pend
prepare of a killed client, applied, SQL does not know it
    a.p~ +6000 a.k:ROLLBACK | -sql:a => UNRECOVERED
prepare of a killed client, applied, SQL says otherwise
    a.p~ +6000 a.k:ROLLBACK | sql:a.state=PARKED => UNRECOVERED DISAGREEMENT
prepare of a killed client, GET says otherwise
    a.p~ +6000 a.k:COMMIT | shown:a.state=PREPARED shown:a.receipts= => UNRECOVERED DISAGREEMENT
keyed publish of a killed client, applied
    a.pub:key=K~
keyed publish of a killed client, repeated
    a.pub:key=K~0 a.pub:key=K
publish of a killed client, not applied
    a.pub~0
publish of a killed client, applied, found by its bytes without a journal
    a.pub~ | no:journal
publish of a killed client, record lost
    a.pub~ | -rec:a => LOST
commit unknown, applied
    a.p a.c?
commit unknown, not applied, then rolled back by a check
    a.p a.c?0 +6000 a.k:ROLLBACK
commit unknown, not applied, never ended
    a.p a.c?0 => UNSETTLED
commit unknown, SQL and op differ
    a.p a.c? | sql:a.state=ROLLED_BACK => UNRECOVERED DISAGREEMENT
rollback of a killed client, applied
    a.p a.r~
commit and rollback both unknown, commit won
    a.p a.c? a.r?
commit and rollback both unknown, rollback won
    a.p a.r? a.c?
commit unknown, told ROLLED_BACK by a GET although committed
    a.p a.c? a.get=ROLLED_BACK => CONTRADICTION
resume unknown
    a.p a.park a.resume? a.c
GET unknown
    a.p a.c a.get?
a history of nothing but killed clients
    a.p~0 b.p~0 d.pub~0
two killed clients with the same bytes, both applied
    a.p~ b.p:from=a~ +6000 a.k:COMMIT b.k:ROLLBACK
two killed clients with the same bytes, one applied
    a.p~ b.p:from=a~0 +6000 a.k:COMMIT
unkeyed prepare unknown and applied, its repeats all refused
    a.p~ b.p:from=a! d.p:from=a! +6000 a.k:COMMIT
two killed clients with one message in common, both applied
    a.p:count=2~ b.p:from=a~ +6000 b.k:COMMIT a.k:ROLLBACK
one killed client, two transactions with its bytes
    a.p~ b.p:from=a~ +6000 a.k:COMMIT b.k:COMMIT | -heard:c-2 => PHANTOM STRANGE_CHECK
"""

ENDS = """
still pending
    a.p => UNSETTLED
still pending, the run says so
    a.p | allow:pend
still parked
    a.p a.park
still blocked
    block a.p a.c => UNSETTLED
still blocked, the run says so
    block a.p a.c | allow:block
resumed and pending
    a.p a.park a.resume => UNSETTLED
acked and in no view
    a.p | -journal:a -sql:a -shown:a no:counts => FORGOTTEN
acked, ended, half message gone
    a.p a.r | -journal:a#0 => FORGOTTEN DISAGREEMENT
acked, only a void half message
    a.p:key=K a.void | -journal:a#0 allow:pend no:counts => FORGOTTEN DISAGREEMENT
404 before the prepare was acked
    a.get404 a.p a.c
404 after the prepare was acked
    a.p a.get404 a.c => FORGOTTEN
404 asked for just when the prepare was acked
    a.p a.get404 a.c | may:clock_slack_ms=10
404 for a commit after the prepare was acked
    a.p a.c404 a.c => FORGOTTEN
404 after the end
    a.p a.r a.get404 => FORGOTTEN
404 for what nobody prepared
    z.get404
parked without its message
    a.p a.park | -parked:a => BAD_PARK
parked topic not given
    a.p a.park | no:parked
a record in the parked topic, never parked
    a.p a.park a.c | op:a.parked=null => BAD_PARK
late commit of a parked one, copy stays
    a.p a.park a.c
parked twice
    a.p a.park a.resume a.park
"""


@history_cases(HONESTY)
def test_dishonest_answers_are_found(script: str, kinds: str) -> None:
    """A: 2xx only after the fact, a refusal only if nothing happened."""
    check_kinds(script, kinds)


@history_cases(UNKNOWN)
def test_unknown_outcomes_have_one_truth(script: str, kinds: str) -> None:
    """A: after an unknown outcome all views share one truth, or there is nothing."""
    check_kinds(script, kinds)


@history_cases(ENDS)
def test_forgotten_and_unsettled_ones_are_found(script: str, kinds: str) -> None:
    """S, T: an acknowledged prepare can be found until it ends, and it ends."""
    check_kinds(script, kinds)
