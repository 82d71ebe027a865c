"""The history checker where real topics were deleted or refused records, and where the bridge's reasons are looked at.

Cases as in `test_history_promises`.
"""

from tests.support.history_cases import check_kinds, history_cases

DELETED = """
published, then deleted
    a.p a.c b.p b.c | gone:a
published in the deleted topic and in the new one
    a.p a.c | twice:a => DUPLICATE
under way when the topic was deleted
    a.p a.c | flight:a
appended between the last look and the deletion
    a.p a.c | unseen:a
not found though it must have been there
    a.p a.c | missed:a => LOST
receipt behind what was read, told long after
    a.p a.c | unseen:a op:a.stored_ms=1200000 => LOST
receipt behind what was read, told long before
    a.p a.c | unseen:a op:a.stored_ms=900000 => LOST
under way, but the receipt names another place
    a.p a.c b.p b.c | flight:b op:b.receipts=orders/0/0 sql:b.receipts=orders/0/0 shown:b.receipts=orders/0/0 => LOST
one message to another topic, which is there
    a.p:count=2 a.c | unseen:a
one message to another topic, which is lost
    a.p:count=2 a.c | unseen:a -rec:a => LOST
both of two deleted, another has both topics
    a.p:count=3 a.c b.p:count=3 b.c | gone:a
rolled back and in the deleted topic
    a.p a.c | gone:a op:a.state=ROLLED_BACK sql:a.state=ROLLED_BACK shown:a.state=ROLLED_BACK no:journal,counts
    => PHANTOM CONTRADICTION FALSE_ACCEPT
rollback, nothing in the deleted topic
    a.p a.r b.p b.c | gone:b
changed in the deleted topic
    a.p a.c | rec:a.value=x gone:a => CORRUPT WRONG_RECEIPT FALSE_ACCEPT
order inside the deleted topic
    a.p:order=O b.p:order=O a.c b.c | swap:a,b gone:a gone:b
order in the new topic
    a.p:order=O,part=0 b.p:order=O,part=0 a.c b.c c.p c.c | swap:a,b gone:c => OUT_OF_ORDER
"""

REFUSALS = """
nobody kept account
    a.p!
the topic had this trouble
    a.p! | trouble:orders/illegal-topic
the topic had another trouble
    a.p! | trouble:orders/unknown-topic => FALSE_REFUSAL
another topic had the trouble
    a.p! | trouble:credits/illegal-topic => FALSE_REFUSAL
one of two topics had the trouble
    a.p:count=2! | trouble:credits/illegal-topic
the trouble was over
    +200000 a.p! | trouble:orders/illegal-topic => FALSE_REFUSAL
refused for now
    a.p! | trouble:credits/other heard:c-1.status=503
a publish as well
    a.pub! | trouble:credits/other => FALSE_REFUSAL
a commit that is refused for no reason
    a.p a.c! a.r | trouble:credits/other heard:c-2.status=422 => FALSE_REFUSAL
a commit after a rollback
    a.p a.r a.c! | trouble:credits/other
"""

REASONS = """
parked after all its checks
    a.p:max=1 +6000 a.k:UNKNOWN a.park | op:a.why=MAX_CHECKS
parked after one of two
    a.p:max=2 +6000 a.k:UNKNOWN a.park | op:a.why=MAX_CHECKS => BAD_PARK
parked without any
    a.p a.park | op:a.why=MAX_CHECKS => BAD_PARK
parked after those of an earlier life
    a.p:max=1 +6000 a.k:UNKNOWN a.park | op:a.why=MAX_CHECKS op:a.base=1 => BAD_PARK
parked too early, and committed later
    a.p a.park a.c | op:a.why=MAX_CHECKS => BAD_PARK
parked after its life
    a.p +86400000 a.park | op:a.why=MAX_LIFE
parked before its life was over
    a.p +86000000 a.park | op:a.why=MAX_LIFE => BAD_PARK
nobody could be asked for a life
    a.p +86400000 a.park | op:a.why=NO_ENDPOINT
nobody could be asked for a moment
    a.p +6000 a.park | op:a.why=NO_ENDPOINT => BAD_PARK
parked for a reason of blocks
    a.p +86400000 a.park | op:a.why=SPLIT => BAD_PARK
blocked for that reason
    block a.p a.c | allow:block op:a.why=SPLIT
answered and never counted
    a.p +6000 a.k:UNKNOWN +30000 a.k | allow:pend op:a.check_times=0 sql:a.check_times=0 shown:a.check_times=0
    => MISCOUNTED_CHECK
answered, counted, asked again
    a.p +6000 a.k:UNKNOWN +30000 a.k | allow:pend
asked once, not counted
    a.p +6000 a.k | allow:pend
"""


@history_cases(DELETED)
def test_deleted_topics(script: str, kinds: str) -> None:
    """What lay in a deleted topic was published once, and is not lost."""
    check_kinds(script, kinds)


@history_cases(REFUSALS)
def test_refusals_need_a_reason(script: str, kinds: str) -> None:
    """A refusal for good is honest where something was wrong with a topic (A)."""
    check_kinds(script, kinds)


@history_cases(REASONS)
def test_reasons_are_looked_at(script: str, kinds: str) -> None:
    """Parked for what is so, and all that was answered is counted (S, K)."""
    check_kinds(script, kinds)
