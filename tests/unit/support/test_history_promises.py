"""The history checker on small histories of known verdict: what it must find, and what only looks like a finding.

A case is a line with its name, then its script (`tests.support.history_script`), and behind "=>" the kinds of findings
that it must have, and no others.
"""

from tests.support.history_cases import check_kinds, history_cases

LOSS = """
commit acked, record there
    a.p a.c
commit acked, no record
    a.p a.c | -rec:a => LOST
commit acked, record only in an aborted Kafka transaction
    a.p a.c | -committed:a => LOST
record aborted once, then published
    a.p a.abort a.c
publish acked, no record
    a.pub | -rec:a => LOST
keyed publish acked, no record
    a.pub:key=K | -rec:a => LOST
commit of unknown outcome applied, record there
    a.p a.c?
commit of unknown outcome applied, no record
    a.p a.c? | -rec:a => LOST
commit of unknown outcome not applied, no record
    a.p a.c?0 | allow:pend
commit of a killed client applied, no record
    a.p a.c~ | -rec:a => LOST
commit by a check, no record
    a.p +6000 a.k:COMMIT | -rec:a => LOST
commit by a check, record there
    a.p +6000 a.k:COMMIT
commit by an operator, no record
    a.p a.park a.fc | -rec:a => LOST
late commit of a parked one, no record
    a.p a.park a.c | -rec:a => LOST
late commit of a parked one, record there
    a.p a.park a.c
rollback, no record
    a.p a.r
blocked commit, no record yet
    block a.p a.c | allow:block
blocked commit published later
    block a.p a.c well a.unblock
blocked commit said to be published, no record
    block a.p a.c well a.unblock | -rec:a => LOST
blocked commit, GET says published, no record
    block a.p a.c | allow:block shown:a.blocked=no => DISAGREEMENT
blocked in the op topic, an answer said published
    block a.p a.c | allow:block heard:c-2.blocked=no => LOST
one of three messages missing
    a.p:count=3 a.c | -rec:a#1 => TORN WRONG_RECEIPT FALSE_ACCEPT
last of three messages missing, no receipts given
    a.p:count=3 a.c? | -rec:a#2 op:a.receipts= sql:a.receipts= shown:a.receipts= => TORN
all of three messages missing
    a.p:count=3 a.c | -rec:a => LOST
all of three messages there
    a.p:count=3 a.c
100 messages there
    a.p:count=100 a.c
one of 100 missing
    a.p:count=100 a.c | -rec:a#99 => TORN WRONG_RECEIPT FALSE_ACCEPT
one of three missing, one of three twice
    a.p:count=3 a.c | -rec:a#1 copy:a => CORRUPT WRONG_PLACE WRONG_RECEIPT FALSE_ACCEPT
its neighbour's record missing
    a.p a.c b.p b.c | -rec:b => LOST
no op topic given, commit acked, no record
    a.p a.c | -rec:a no:op => LOST
only history and records given, no record
    a.p a.c | -rec:a no:op,sql,shown,journal,checks,counts,parked => LOST
only history and records given, record there
    a.p a.c | no:op,sql,shown,journal,checks,counts,parked
"""

PHANTOMS = """
rolled back and not visible
    a.p a.r
rolled back and visible
    a.p a.c | op:a.state=ROLLED_BACK sql:a.state=ROLLED_BACK shown:a.state=ROLLED_BACK no:journal,counts
    heard:c-2.state=ROLLED_BACK heard:c-2.receipts= => PHANTOM FALSE_ACCEPT CONTRADICTION
prepared only and visible
    a.p | allow:pend copyof:a => PHANTOM
prepared only and aborted
    a.p a.abort | allow:pend
parked and visible
    a.p a.park | copyof:a => PHANTOM
rolled back and visible after all
    a.p a.r | copyof:a => PHANTOM
rolled back, aborted copy not visible
    a.p a.abort a.r
visible, but the op topic does not know it
    a.p a.c | -op:a => PHANTOM CONTRADICTION DISAGREEMENT FALSE_ACCEPT NOT_CONSERVED UNSETTLED
visible, and nobody asked for it
    a.p a.c | -heard:a => PHANTOM
a record of no transaction
    a.p a.c foreign | stray:not-foreign => PHANTOM
a record of another producer
    a.p a.c foreign
another producer's record between ours
    a.p a.c foreign b.p b.c foreign
only foreign records
    foreign foreign
committed by nobody
    a.p a.c | -heard:c-2 => PHANTOM
committed by a check that nobody answered
    a.p +6000 a.k:COMMIT | checks:a.answer=null => PHANTOM MISCOUNTED_CHECK
committed by a check, calls not given
    a.p +6000 a.k:COMMIT | no:checks
committed by an operator
    a.p a.fc
committed, the journal has no COMMIT
    a.p a.c | -journal:a#1 => PHANTOM CONTRADICTION
committed by an end of another group only
    a.p a.c | journal:a#1.group=h => PHANTOM CONTRADICTION
committed by an end that says its group
    a.p a.c | journal:a#1.group=g
the end lies before its half message
    a.p a.c | turn:journal => PHANTOM CONTRADICTION
committed record read by a live consumer
    a.p a.c consume
a consumer reads everything twice
    a.p a.c consume consume
a consumer stopped early
    a.p a.c consume b.p b.c
a consumer got an aborted record
    a.p a.abort a.r | leak:a => ABORTED_READ
a consumer got an aborted record, published later
    a.p a.abort a.c | leak:a => ABORTED_READ
a consumer got a record that the log no more has
    a.p a.c consume b.p b.c | -committed:a -uncommitted:a => ABORTED_READ LOST
a consumer got other bytes
    a.p a.c consume | consumed:a.value=x => ABORTED_READ
a consumer got another timestamp
    a.p a.c consume | consumed:a.timestamp_ms=7 => ABORTED_READ
a consumer got foreign records
    a.p a.c foreign consume
read_committed has more than read_uncommitted
    a.p a.c | -uncommitted:a => ABORTED_READ
the two isolation levels differ in bytes
    a.p a.c | uncommitted:a.headers=x => ABORTED_READ
read_uncommitted not given
    a.p a.abort a.c | no:uncommitted
the op topic says blocked, and it is visible
    a.p a.c | op:a.blocked=yes sql:a.blocked=yes shown:a.blocked=yes allow:block heard:c-2.blocked=yes
    heard:c-2.status=202 => DISAGREEMENT
publish refused, nothing there
    a.pub!
keyed prepare killed before it was sent
    a.p:key=K~0
"""

DUPLICATES = """
record twice
    a.p a.c | copy:a => DUPLICATE
record three times
    a.p a.c | copy:a copy:a => DUPLICATE
one of two messages twice
    a.p:count=2 a.c | copy:a => DUPLICATE
second copy aborted
    a.p a.c a.abort
commit twice, one record
    a.p a.c a.c
commit five times, one record
    a.p a.c a.c a.c a.c a.c
commit twice, two records
    a.p a.c a.c | copy:a => DUPLICATE
commit and check commit, one record
    a.p +6000 a.k:COMMIT a.c
commit repeated after an unknown outcome
    a.p a.c? a.c
commit repeated after an unknown outcome, two records
    a.p a.c? a.c | copy:a => DUPLICATE
keyed prepare repeated
    a.p:key=K a.p:key=K a.c
keyed prepare repeated after an unknown outcome
    a.p:key=K? a.p:key=K a.c
keyed prepare repeated by a killed client
    a.p:key=K~ a.p:key=K a.c
keyed prepare repeated, two ids
    a.p:key=K b.p:key=K,from=a a.c b.r => TWICE_PREPARED
keyed publish repeated
    a.pub:key=K a.pub:key=K
keyed publish repeated, two records
    a.pub:key=K a.pub:key=K | copy:a => DUPLICATE
keyed publish repeated after killed ones
    a.pub:key=K~ a.pub:key=K~ a.pub:key=K
unkeyed publish repeated after an unknown outcome: two transactions
    a.pub? b.pub:from=a
unkeyed publish of unknown outcome, visible twice under two ids
    a.pub? | split:a,z => PHANTOM
same key in two groups
    a.p:key=K a.c b.p:key=K,group=h,from=a b.c
two transactions with the same bytes
    a.p a.c b.p:from=a b.c
void repeat of the half message
    a.p:key=K a.void a.c
void repeat after the end
    a.p:key=K a.c a.void
half message repeated
    a.p:key=K a.again a.c
half message repeated after the end, op message rewritten
    a.p:key=K a.c a.again a.rewrite
twice in one partition, read live
    a.p a.c consume | copy:a => DUPLICATE
extra record with other bytes
    a.p a.c | copy:a rec:a#1.value=x => DUPLICATE
"""

INTEGRITY = """
value changed
    a.p a.c | rec:a.value=x => CORRUPT WRONG_RECEIPT FALSE_ACCEPT
value null instead of bytes
    a.p a.c | rec:a.value=null => CORRUPT WRONG_RECEIPT FALSE_ACCEPT
key changed
    a.p:mkey=M a.c | rec:a.key=N => CORRUPT
key empty instead of null
    a.p a.c | rec:a.key= => CORRUPT
key null instead of bytes
    a.p:mkey=M a.c | rec:a.key=null => CORRUPT
header list changed
    a.p a.c | rec:a.headers=x => CORRUPT
header list empty
    a.p a.c | rec:a.headers= => CORRUPT
timestamp asked for kept
    a.p:ts=5 a.c
timestamp asked for changed
    a.p:ts=5 a.c | rec:a.timestamp_ms=6 => CORRUPT
timestamp asked for replaced by the topic
    a.p:ts=5 a.c | rec:a.timestamp_ms=6 may:append_time=orders
no timestamp asked for: append time of the commit
    a.p a.c
no timestamp asked for: another
    a.p a.c | rec:a.timestamp_ms=7 => CORRUPT
no timestamp asked for: replaced by the topic
    a.p a.c | rec:a.timestamp_ms=7 may:append_time=orders
partition asked for
    a.p:part=1 a.c
partition 0 asked for
    a.p:part=0 a.c
partition asked for, another taken
    a.p:part=1 a.c | rec:a.partition=0 => WRONG_PLACE WRONG_RECEIPT FALSE_ACCEPT
no partition asked for, any taken
    a.p a.c? | rec:a.partition=1 op:a.receipts= sql:a.receipts= shown:a.receipts=
the same message twice, one of them to a partition
    a.p:twin=0 a.c? | rec:a#0.partition=1 turn:committed op:a.receipts= sql:a.receipts= shown:a.receipts=
topic changed
    a.p a.c | rec:a.topic=credits => WRONG_PLACE WRONG_RECEIPT FALSE_ACCEPT
second of two values changed
    a.p:count=2 a.c | rec:a#1.value=x => CORRUPT WRONG_RECEIPT FALSE_ACCEPT
keys of two messages swapped with their values kept
    a.p:count=3,mkey=M a.c | rec:a#2.key=N => CORRUPT
long value changed
    a.p:count=2 a.c | rec:a#1.value=also => CORRUPT WRONG_RECEIPT FALSE_ACCEPT
two things changed in one record
    a.p:mkey=M a.c | rec:a.key=N rec:a.headers=x => CORRUPT
journal holds other bytes
    a.p a.c | half:a.value=x => CORRUPT
journal holds the timestamp not
    a.p:ts=5 a.c | half:a.timestamp_ms=null => CORRUPT
parked topic holds other bytes
    a.p a.park | park:a.value=x => CORRUPT
parked topic holds the same bytes
    a.p:count=2 a.park
corrupt in journal and record
    a.p a.c | half:a.headers=x rec:a.headers=x => CORRUPT
unknown prepare, later committed by a check, same bytes
    a.p~ +6000 a.k:COMMIT
unknown prepare, later committed by a check, other bytes
    a.p~ +6000 a.k:COMMIT | rec:a.value=x => CORRUPT WRONG_RECEIPT
unknown keyed prepare, other bytes
    a.p:key=K~ +6000 a.k:COMMIT | rec:a.headers=x => CORRUPT
"""

ORDER = """
two of one key in order
    a.p:mkey=M b.p:mkey=M a.c b.c
two of one key, the later prepared ended first
    a.p:mkey=M b.p:mkey=M b.c a.c
two of one key swapped
    a.p:mkey=M b.p:mkey=M a.c b.c | swap:a,b => OUT_OF_ORDER
two of one key swapped, journal alone tells
    a.p:mkey=M b.p:mkey=M a.c? b.c? | swap:a,b no:checks => OUT_OF_ORDER
two of one key swapped, clients alone tell
    a.p:mkey=M b.p:mkey=M a.c b.c | swap:a,b no:journal => OUT_OF_ORDER
two of one key swapped, nobody can tell
    a.p:mkey=M b.p:mkey=M a.c~ b.c~ | swap:a,b no:journal
clients' clocks too far apart to tell
    a.p:mkey=M b.p:mkey=M a.c b.c | swap:a,b no:journal may:clock_slack_ms=500
overlapping commits may be recorded either way
    a.p:mkey=M b.p:mkey=M a.c~ b.c | swap:a,b no:journal
two of two keys swapped
    a.p:mkey=M b.p:mkey=O a.c b.c | swap:a,b
two without key swapped
    a.p b.p a.c b.c | swap:a,b
two of one ordering key swapped
    a.p:order=O b.p:order=O a.c b.c | swap:a,b => OUT_OF_ORDER
ordering key overrules the message key
    a.p:order=O,mkey=M b.p:order=P,mkey=M a.c b.c | swap:a,b
ordering key equals the other's message key
    a.p:order=M b.p:mkey=M a.c b.c | swapin:a,b
one key of two groups swapped
    a.p:mkey=M,group=g b.p:mkey=M,group=h a.c b.c | swap:a,b
one ordering key of two groups swapped
    a.p:order=O,group=g b.p:order=O,group=h a.c b.c | swap:a,b
empty ordering key is a key
    a.p:order= b.p:order= a.c b.c | swap:a,b => OUT_OF_ORDER
first and third of three swapped
    a.p:mkey=M a.c b.p:mkey=M b.c d.p:mkey=M d.c | swap:a,d => OUT_OF_ORDER
published ones of one key swapped
    a.pub:mkey=M b.pub:mkey=M | swap:a,b => OUT_OF_ORDER
published first, and told of it only when it is published again
    a.pub:key=K,mkey=M? b.pub:mkey=M a.pub:key=K,mkey=M
blocked one published later, the next one behind it
    block a.p:mkey=M a.c b.p:mkey=M b.c well a.unblock b.unblock
blocked one overtaken
    block a.p:mkey=M a.c b.p:mkey=M b.c well b.unblock a.unblock => OUT_OF_ORDER
blocked one of another key overtaken
    block a.p:mkey=M a.c b.p:mkey=O b.c well b.unblock a.unblock
in order by check and by call
    a.p:mkey=M b.p:mkey=M +6000 a.k:COMMIT b.c
by check and by call, swapped
    a.p:mkey=M b.p:mkey=M +6000 a.k:COMMIT b.c | swap:a,b => OUT_OF_ORDER
one key over two partitions
    a.p:order=O,part=0 b.p:order=O,part=1 a.c b.c
rolled back ones have no order
    a.p:mkey=M b.p:mkey=M b.r a.c
late commit of a parked one comes later
    a.p:mkey=M a.park b.p:mkey=M b.c a.c
late commit of a parked one comes too early
    a.p:mkey=M a.park b.p:mkey=M b.c a.c | swap:a,b => OUT_OF_ORDER
"""


@history_cases(LOSS)
def test_lost_and_torn_ones_are_found(script: str, kinds: str) -> None:
    """L: an acknowledged commit, or a recorded COMMIT, puts exactly the prepared records into their topics."""
    check_kinds(script, kinds)


@history_cases(PHANTOMS)
def test_phantoms_are_found(script: str, kinds: str) -> None:
    """P: what can be read has a recorded COMMIT, and committed readers never get what was aborted."""
    check_kinds(script, kinds)


@history_cases(DUPLICATES)
def test_duplicates_are_found(script: str, kinds: str) -> None:
    """D: once, whatever is repeated."""
    check_kinds(script, kinds)


@history_cases(INTEGRITY)
def test_changed_messages_are_found(script: str, kinds: str) -> None:
    """I: key, value, headers, timestamp and partition arrive as prepared."""
    check_kinds(script, kinds)


@history_cases(ORDER)
def test_wrong_order_is_found(script: str, kinds: str) -> None:
    """O: published in the order in which the commits were recorded."""
    check_kinds(script, kinds)
