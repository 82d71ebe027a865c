"""The history checker on answers, views, counts and checks: what must be found, and what only looks like a finding."""

from tests.support.history_cases import check_kinds, history_cases

ANSWERS = """
answers agree
    a.p a.c a.get a.c
contradiction where the first won
    a.p a.c a.r
contradiction where the first won, the other way round
    a.p a.r a.c
the loser of a contradiction is told 200
    a.p a.c a.r=ROLLED_BACK => CONTRADICTION FALSE_ACCEPT
the loser is told 200 with the recorded state
    a.p a.c a.r=COMMITTED => FALSE_ACCEPT
two 200 for two ends at once, rollback recorded
    a.p a.r a.c=COMMITTED => CONTRADICTION LOST FALSE_ACCEPT
GET shows another end later
    a.p a.c a.get=ROLLED_BACK => CONTRADICTION
GET shows PREPARED after the end
    a.p a.c a.get=PREPARED => CHANGED_ANSWER
GET shows PARKED after the end
    a.p a.park a.r a.get=PARKED => CHANGED_ANSWER
GET shows PREPARED before the end
    a.p a.get a.c a.get
GET shows PARKED, then COMMITTED: parked is not final
    a.p a.park a.get a.c a.get
GET shows PARKED, then PREPARED: resumed
    a.p a.park a.get a.resume a.get a.c
GET shows blocked, later published
    block a.p a.c a.get well a.unblock a.get
a late rollback hears COMMITTED, not whether it is blocked
    block a.p a.c a.r a.get well a.unblock a.get
GET shows published, later blocked
    block a.p a.c well a.unblock a.get a.get | heard:c-4.blocked=yes => CHANGED_ANSWER
a stale answer within the clocks' slack
    a.p a.c a.get=PREPARED | may:clock_slack_ms=10
keyed prepare repeated after the end shows the end
    a.p:key=K a.c a.p:key=K
keyed prepare repeated after the end still shows PREPARED
    a.p:key=K a.c a.p:key=K | heard:c-3.state=PREPARED heard:c-3.receipts= => CHANGED_ANSWER
keyed prepare repeated after the end, 201
    a.p:key=K a.r a.p:key=K | heard:c-3.status=201 => FALSE_ACCEPT
unkeyed prepare is told COMMITTED at once
    a.p a.c | heard:c-1.state=COMMITTED => FALSE_ACCEPT
rollback answered by the check's ROLLBACK
    a.p +6000 a.k:ROLLBACK a.r
check said COMMIT, the producer's late rollback is refused
    a.p +6000 a.k:COMMIT a.r
check said ROLLBACK after the recorded commit
    a.p +6000 a.c a.k:ROLLBACK
commit told 200 with other receipts than before
    a.p a.c a.c | heard:c-3.receipts=orders/0/7 => CONTRADICTION
commit told 200 with receipts of a missing record
    a.p a.c | heard:c-2.receipts=orders/0/7 => FALSE_ACCEPT
commit told 200 without receipts
    a.p a.c | heard:c-2.receipts= => FALSE_ACCEPT
commit told 200 with one receipt of two
    a.p:count=2 a.c | heard:c-2.receipts=orders/0/0 => FALSE_ACCEPT
commit told 200 with its receipts in another order
    a.p:count=2 a.c | heard:c-2.receipts=credits/0/0,orders/0/0 => FALSE_ACCEPT
commit told 202 and no state: durable, not yet settled
    a.p a.c | heard:c-2.status=202 heard:c-2.state=null heard:c-2.receipts=
blocked commit told 200
    block a.p a.c | heard:c-2.status=200 allow:block => FALSE_ACCEPT
blocked commit told 202
    block a.p a.c | allow:block
blocked commit is abandoned, and told so ever after
    block a.p a.c a.ab a.c a.get a.r a.ab count well b.p b.c
what is published is not abandoned
    a.p a.c a.ab a.get
abandoned commit told 200 without a word of it
    block a.p a.c a.ab a.c | heard:c-4.abandoned=no => LOST FALSE_ACCEPT
abandoned commit told to be blocked later
    block a.p a.c a.ab a.c | heard:c-4.abandoned=no heard:c-4.blocked=yes heard:c-4.status=202 => CHANGED_ANSWER
abandoned is told, and it is published later
    block a.p a.c a.ab a.rewrite | op:a#2.abandoned=no no:counts => LOST CONTRADICTION DISAGREEMENT
act is acknowledged, and the commit is still blocked
    block a.p a.c a.ab | -op:a#1 no:counts,sql,shown allow:block => CONTRADICTION
UNKNOWN changes nothing
    a.p a.u a.u a.c
UNKNOWN after the end hears the end
    a.p a.r a.u
force after the end is refused
    a.p a.c a.fr
force of a parked one
    a.p a.park a.fr
two groups end their own
    a.p:group=h a.c b.p b.r
"""

VIEWS = """
abandoned, and nobody asked for it
    block a.p a.c a.ab | -heard:c-3 => CONTRADICTION
abandoned without an act in the journal
    block a.p a.c a.ab | -journal:a#2 => CONTRADICTION
abandoned without a word in the audit
    block a.p a.c a.ab | -audited:a => CONTRADICTION
abandoned, and it can be read
    block a.p a.c a.ab | copyof:a => PHANTOM
abandoned, and blocked again
    block a.p a.c a.ab a.rewrite | op:a#2.abandoned=no op:a#2.blocked=yes no:sql,shown,counts => CONTRADICTION UNSETTLED
SQL does not know that it is abandoned
    block a.p a.c a.ab | sql:a.abandoned=no => DISAGREEMENT
abandoned ones are not counted
    block a.p a.c a.ab | counts:g#0.abandoned=0 => NOT_CONSERVED
more is blocked and abandoned than committed
    block a.p a.c a.ab b.p b.c count | counts:g#0.blocked=2 allow:block => NOT_CONSERVED
SQL says another state
    a.p a.c | sql:a.state=ROLLED_BACK => DISAGREEMENT
SQL still says PREPARED
    a.p a.c | sql:a.state=PREPARED sql:a.receipts= => DISAGREEMENT
SQL says COMMITTED too early
    a.p | allow:pend sql:a.state=COMMITTED => DISAGREEMENT
SQL lacks an ended one
    a.p a.r | -sql:a => FORGOTTEN
SQL lacks a pending one
    a.p | allow:pend -sql:a => FORGOTTEN
SQL not given
    a.p a.r | no:sql
SQL says blocked
    a.p a.c | sql:a.blocked=yes => DISAGREEMENT
SQL has other receipts
    a.p a.c | sql:a.receipts=orders/1/0 => DISAGREEMENT
SQL has no receipts
    a.p a.c | sql:a.receipts= => DISAGREEMENT
SQL has another group
    a.p a.c | sql:a.group=h => DISAGREEMENT
SQL has other check times
    a.p +6000 a.k:UNKNOWN a.c | sql:a.check_times=2 => DISAGREEMENT
SQL has an orphan
    a.p a.c | alias:sql,a,z => DISAGREEMENT
GET says another state
    a.p a.c | shown:a.state=PARKED => DISAGREEMENT
GET says another end
    a.p a.r | shown:a.state=COMMITTED => DISAGREEMENT
op topic says another end than the journal
    a.p a.r | op:a.state=COMMITTED => CONTRADICTION FALSE_ACCEPT LOST DISAGREEMENT NOT_CONSERVED PHANTOM
op topic says one end, then the other
    a.p a.r a.rewrite | op:a#0.state=COMMITTED => CONTRADICTION
op topic says the same end twice
    a.p a.r a.rewrite
op topic goes back from an end
    a.p a.c a.rewrite | op:a#0.state=ROLLED_BACK => CONTRADICTION
op topic forgot a rolled back one
    a.p a.r | -op:a => CONTRADICTION DISAGREEMENT FALSE_ACCEPT UNSETTLED NOT_CONSERVED
op topic knows another group
    a.p a.c | op:a.group=h => DISAGREEMENT
op topic knows one that nobody prepared
    a.p a.c | alias:op,a,z => PHANTOM LOST DISAGREEMENT NOT_CONSERVED
op message points at another record
    a.p a.c b.p b.c | op:a.receipts=orders/0/1 => WRONG_RECEIPT DISAGREEMENT
op message points nowhere, offset unknown
    a.p a.c? | op:a.receipts=orders/0/-1 sql:a.receipts=orders/0/-1 shown:a.receipts=orders/0/-1 => WRONG_RECEIPT
op message has too few receipts
    a.p:count=2 a.c? | op:a.receipts=orders/0/0 sql:a.receipts=orders/0/0 shown:a.receipts=orders/0/0
    => WRONG_RECEIPT
journal alone: the first end wins
    a.p a.c a.r | no:op
journal not given
    a.p a.c a.r | no:journal
a later end in the journal changes nothing
    a.p a.c a.r a.c
an end by another group changes nothing
    a.p a.r a.c | journal:a#2.group=h
the deciding end is another group's
    a.p a.r | journal:a#1.group=h => CONTRADICTION
an end behind the position is not yet decided
    a.p a.c~ | -op:a -rec:a sql:a.state=PREPARED shown:a.state=PREPARED sql:a.receipts= shown:a.receipts= no:counts
    positions:0.s=1 allow:pend
an end before the position has been decided
    a.p a.c~ | -op:a -rec:a sql:a.state=PREPARED shown:a.state=PREPARED sql:a.receipts= shown:a.receipts= no:counts
    allow:pend => CONTRADICTION
half message only: PREPARED
    a.p | allow:pend
put back, so PREPARED by the op topic
    a.p a.rewrite | allow:pend
records without the id header are found by their receipts
    a.p a.c b.p b.c | nameless:all
records without the id header, one missing
    a.p a.c b.p b.c | -rec:b nameless:all => LOST
"""

COUNTS = """
counts agree at every observation
    count a.p count a.c count b.p count b.r count d.p d.park count
counts of two groups
    a.p a.c b.p:group=h b.r count
blocked ones are counted among the committed
    block a.p a.c count well a.unblock
prepared is one too many
    a.p a.c count | counts:g#0.prepared=2 => NOT_CONSERVED
prepared is one too few
    a.p a.c b.p b.r count | counts:g#0.prepared=1 => NOT_CONSERVED
one is counted twice, sum right
    a.p a.c count | counts:g#1.prepared=2 counts:g#1.committed=2 => NOT_CONSERVED
an end is counted as the other one
    a.p a.c | counts:g.committed=0 counts:g.rolled_back=1 => NOT_CONSERVED
pending is negative
    a.p a.c | counts:g.pending=-1 counts:g.prepared=0 => NOT_CONSERVED
more blocked than committed
    a.p a.c | counts:g.blocked=2 => NOT_CONSERVED
an early observation may lag behind
    a.p count a.c | counts:g#0.pending=0 counts:g#0.prepared=0
the last observation may not
    a.p a.c | counts:g.committed=0 counts:g.prepared=0 => NOT_CONSERVED
counts not given
    a.p a.c | no:counts
"""

CHECKS = """
first check when it is due
    a.p +6000 a.k:COMMIT
first check one millisecond early
    a.p +6000 a.k:COMMIT | checks:a.at_ms=1006019 => EARLY_CHECK
first check just when it is due
    a.p +6000 a.k:COMMIT | checks:a.at_ms=1006020
first check early by less than the clocks' slack
    a.p +6000 a.k:COMMIT | checks:a.at_ms=1006010 may:clock_slack_ms=10
check inside the immunity time
    a.p:imm=60 +6000 a.k:COMMIT => EARLY_CHECK
check after the immunity time
    a.p:imm=60 +60000 a.k:COMMIT
immunity shorter than the timeout
    a.p:imm=1 +1000 a.k:COMMIT => EARLY_CHECK
unanswered check inside the immunity time
    a.p:imm=60 +6000 a.k +60000 a.k:COMMIT => EARLY_CHECK
journal not given, early all the same
    a.p a.k:COMMIT | no:journal => EARLY_CHECK
journal and op not given, early all the same
    a.p a.k:COMMIT | no:journal,op => EARLY_CHECK
no check of one that ended in time
    a.p +5000 a.c
check after the recorded commit
    a.p +6000 a.c +2000 a.k:COMMIT => LATE_CHECK
check in flight at the recorded commit
    a.p +6000 a.c +500 a.k:COMMIT
check in flight, none allowed
    a.p +6000 a.c +500 a.k:COMMIT | may:in_flight_ms=100 => LATE_CHECK
check in flight as long as may be
    a.p +6000 a.c +500 a.k | checks:a.at_ms=1007050
check in flight one millisecond too long
    a.p +6000 a.c +500 a.k | checks:a.at_ms=1007051 => LATE_CHECK
check after the recorded rollback
    a.p +6000 a.r +2000 a.k => LATE_CHECK
check after an end that was told only
    a.p +6000 a.c +2000 a.k | no:op,journal => LATE_CHECK
second check after an answer UNKNOWN, interval kept
    a.p +6000 a.k:UNKNOWN +30000 a.k:COMMIT
second check after an answer UNKNOWN, too early
    a.p +6000 a.k:UNKNOWN +20000 a.k:COMMIT => EARLY_CHECK
second check just when it is due
    a.p +6000 a.k:UNKNOWN +30000 a.k:COMMIT | checks:a#0.at_ms=1006040 checks:a#1.at_ms=1036040
second check one millisecond early
    a.p +6000 a.k:UNKNOWN +30000 a.k:COMMIT | checks:a#0.at_ms=1006040 checks:a#1.at_ms=1036039 => EARLY_CHECK
group with a timeout of its own
    a.p:group=h +9000 a.k:COMMIT | timeout:h=9000
group with a timeout of its own, too early
    a.p:group=h +6000 a.k:COMMIT | timeout:h=9000 => EARLY_CHECK
another group's timeout does not count
    a.p +6000 a.k:COMMIT | timeout:h=9000
second check at once, an operator asked for it
    a.p +6000 a.k:UNKNOWN a.ask a.k:COMMIT
check repeated at once, nobody answered
    a.p +6000 a.k a.k a.k a.k:COMMIT
check repeated with its number, the answer was lost
    a.p +6000 a.k:COMMIT,lost a.k:COMMIT
answers COMMIT and ROLLBACK in turn, the first lost
    a.p +6000 a.k:ROLLBACK,lost a.k:COMMIT
as many as allowed
    a.p:max=2 +6000 a.k:UNKNOWN +30000 a.k:UNKNOWN a.park
one more than allowed
    a.p:max=2 +6000 a.k:UNKNOWN +30000 a.k:UNKNOWN +30000 a.k:COMMIT => TOO_MANY_CHECKS
unanswered ones are not counted
    a.p:max=1 +6000 a.k a.k a.k a.k:UNKNOWN a.park
resumed: as many again
    a.p:max=1 +6000 a.k:UNKNOWN a.park a.resume +30000 a.k:UNKNOWN a.park
resumed: one more than as many again
    a.p:max=1 +6000 a.k:UNKNOWN a.park a.resume +30000 a.k:UNKNOWN +30000 a.k:COMMIT => TOO_MANY_CHECKS
resume of unknown outcome: as many again
    a.p:max=1 +6000 a.k:UNKNOWN a.park a.resume? +30000 a.k:COMMIT
resume refused: not as many again
    a.p:max=1 +6000 a.k:UNKNOWN a.park a.resume! +30000 a.k:COMMIT => TOO_MANY_CHECKS
a round without an answer was counted
    a.p +6000 a.k +30000 a.k:COMMIT | checks:a#1.check_number=2 => MISCOUNTED_CHECK
the op topic counts more than were answered
    a.p +6000 a.k:UNKNOWN a.c | op:a.check_times=3 sql:a.check_times=3 shown:a.check_times=3 => MISCOUNTED_CHECK
the op topic counts a round inside the immunity time
    a.p a.c | op:a.check_times=1 sql:a.check_times=1 shown:a.check_times=1 => MISCOUNTED_CHECK
answered through the API (pull mode)
    a.p +6000 a.k a.u:nonce=a1 a.c | op:a.check_times=1 sql:a.check_times=1 shown:a.check_times=1
another group is asked
    a.p +6000 a.k:COMMIT | checks:a.group=h => STRANGE_CHECK
asked about what nobody prepared
    a.p a.c | asked:z => STRANGE_CHECK
endpoints' logs not given
    a.p +6000 a.k:COMMIT | no:checks
"""


@history_cases(ANSWERS)
def test_answers_that_disagree_are_found(script: str, kinds: str) -> None:
    """F, A: the first final answer is true, and all later ones agree with it."""
    check_kinds(script, kinds)


@history_cases(VIEWS)
def test_views_that_disagree_are_found(script: str, kinds: str) -> None:
    """F: op topic, journal, SQL and GET tell one story."""
    check_kinds(script, kinds)


@history_cases(COUNTS)
def test_counts_that_do_not_add_up_are_found(script: str, kinds: str) -> None:
    """C: prepared = committed + rolled back + parked + pending."""
    check_kinds(script, kinds)


@history_cases(CHECKS)
def test_insane_checks_are_found(script: str, kinds: str) -> None:
    """K: not before the immunity time, not after a resolution, not too often; the endpoint's own log is the witness."""
    check_kinds(script, kinds)
