"""What each kind of finding means to whoever is woken by it, and what to look at first. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from spark.judge.rules import FindingKind


class Advice(NamedTuple):
    """Two sentences for people: what has happened, what to do first."""

    meaning: str
    first_step: str


ADVICE: Mapping[FindingKind, Advice] = {
    FindingKind.MISSING: Advice(
        "Committed, but none of its messages can be read.",
        "Consumers never had it. Look what happened at the offsets of the receipt: records deleted, an unclean "
        "leader election, a topic made anew. The half message in the journal still holds the message.",
    ),
    FindingKind.PARTIAL: Advice(
        "Committed, but only some of its messages can be read.",
        "Consumers of the rest never had theirs. Look at the offsets of the receipts, as for MISSING.",
    ),
    FindingKind.DUPLICATE: Advice(
        "A message can be read more than once.",
        "Consumers that do not drop repeats by the header transaction-id have acted twice: inform their owners. Then "
        "look for whoever copies records: a restore, a mirror, a second writer.",
    ),
    FindingKind.PHANTOM: Advice(
        "Readable, although it was rolled back, parked or never decided.",
        "Consumers have seen what did not happen: inform their owners. Find who wrote the record; nothing but the "
        "bridge may set the header transaction-id.",
    ),
    FindingKind.ORPHAN: Advice(
        "Names a transaction that nobody has prepared.",
        "An end alone is a producer that ends what it never prepared (it was answered 404). A record or an op "
        "message means that somebody else writes to these topics, or that the journal has lost records.",
    ),
    FindingKind.CORRUPT: Advice(
        "Key, value, headers or timestamp are not what was prepared.",
        "Compare the record with the half message at the offsets below, and look for whatever rewrites records: "
        "an interceptor, a transformation, a restore.",
    ),
    FindingKind.WRONG_PLACE: Advice(
        "Published to another topic or partition than asked for.",
        "Consumers of the one asked for did not have it. Was it moved or copied by hand?",
    ),
    FindingKind.WRONG_RECEIPT: Advice(
        "The message is there; its receipt points elsewhere.",
        "Consumers are right, the API's receipts are not. Was the topic restored or copied?",
    ),
    FindingKind.CONTRADICTION: Advice(
        "The op topic says something else than the first recorded end, or two things.",
        "The journal is right. Do not act on what the API says of these, keep the records below, and report it.",
    ),
    FindingKind.UNREADABLE: Advice(
        "A record of an internal topic cannot be read, or is empty where none may be.",
        "Of another version, it halts its queue: `outbox-bridge doctor` shows it. All others are passed over. Nobody "
        "but the bridge may write these topics: look who did, and take the right away. An empty op message lets "
        "compaction remove a state: the next owner then takes what has ended for undecided.",
    ),
    FindingKind.UNSETTLED: Advice(
        "Ended by its producer, but nothing has followed.",
        "Does a settler own the queue? `outbox-bridge doctor` looks. Where nothing can have been published, "
        "`outbox-bridge report repair` sends the same end once more. Where a record is visible, the op message was "
        "lost: do not commit it again, and look what has removed records of the op topic.",
    ),
    FindingKind.STALE: Advice(
        "Undecided for longer than its longest life.",
        "It is not asked about, or not parked when its time was over: look at the settler and the group's "
        "endpoints. `outbox-bridge report repair` asks again.",
    ),
    FindingKind.BAD_PARK: Advice(
        "Parked, but its parked copy is missing, or is another message.",
        "Do not take the message from the parked topic; the half message in the journal is the right one.",
    ),
    FindingKind.BAD_CHECK: Advice(
        "Asked about too often, too early, or after its end.",
        "Nothing is lost. Was a limit of the group changed inside the window? Else compare the machines' clocks.",
    ),
    FindingKind.WRONG_GROUP: Advice(
        "Ended by another producer group than its own.",
        "Two producers share ids, or one has a wrong group name: look which of them wrote the end.",
    ),
    FindingKind.OUT_OF_ORDER: Advice(
        "Published before an earlier commit of the same ordering key.",
        "Consumers may have kept the older of two states of one thing: look at both records, then report it.",
    ),
    FindingKind.TABLE_MISMATCH: Advice(
        "The producer's own table and the topics do not agree.",
        "The row is what the producer has committed: compare it with the transaction's timeline.",
    ),
    FindingKind.UNPROVABLE: Advice(
        "Retention or compaction has removed the proof.",
        "Nothing is known to be wrong, and nothing can be shown to be right. Reconcile more often than the topics "
        "forget, or keep them longer.",
    ),
}
