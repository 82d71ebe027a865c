"""The bridge's tables. `alembic/versions` must say the same; a test compares.

Times are milliseconds since 1970 UTC. Text columns named after a list or mapping hold JSON.
The projection's tables have no foreign keys: they are written in bulk, purged and rebuilt together.
"""

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite counts rows up only in a column that is exactly INTEGER.
_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _int(name: str, *, null: bool = False, default: str | None = None) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=null, server_default=default)


def _text(name: str, *, null: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=null)


def _version(name: str, *more: sa.Column[int]) -> sa.Table:
    return sa.Table(
        name, metadata, sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False), _int("version"), *more
    )


producer_groups = sa.Table(
    "producer_groups",
    metadata,
    sa.Column("name", sa.Text(), primary_key=True),
    _int("transaction_timeout_ms"),
    _int("interval_ms"),
    _int("max_checks"),
    _int("max_lifetime_ms"),
    _int("call_timeout_ms"),
    _int("batch_size"),
    _int("concurrency"),
    _text("mode"),
    _int("created_ms"),
    _int("updated_ms"),
    sa.Column("when_exhausted", sa.Text(), server_default="park", nullable=False),
    sa.Column("accepts_prepares", sa.SmallInteger(), server_default="1", nullable=False),
    sa.Column("pauses_checks", sa.SmallInteger(), server_default="0", nullable=False),
)

endpoints = sa.Table(
    "endpoints",
    metadata,
    sa.Column("producer_group", sa.Text(), sa.ForeignKey("producer_groups.name", ondelete="CASCADE"), primary_key=True),
    sa.Column("url", sa.Text(), primary_key=True),
    sa.Column("is_leased", sa.Boolean(), nullable=False),
    _int("lease_until_ms", null=True),
    _int("lease_ms", null=True),
    _text("disabled_reason", null=True),
)

secrets = sa.Table(
    "secrets",
    metadata,
    sa.Column("id", _ROW_ID, primary_key=True, autoincrement=True),
    sa.Column(
        "producer_group",
        sa.Text(),
        sa.ForeignKey("producer_groups.name", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    _text("secret"),
    _int("created_ms"),
    _int("expires_ms", null=True),
)

# One row; its number moves with every change of groups, endpoints or secrets. `accepts_prepares`: of any group.
directory_version = _version(
    "directory_version", sa.Column("accepts_prepares", sa.SmallInteger(), server_default="1", nullable=False)
)

# What became of rounds, per endpoint ("": the group had none): answered ones by the projector, others by the checker.
check_results = sa.Table(
    "check_results",
    metadata,
    sa.Column("producer_group", sa.Text(), primary_key=True),
    sa.Column("endpoint", sa.Text(), primary_key=True),
    _int("answered", default="0"),
    _int("last_answered_ms", null=True),
    _int("last_latency_ms", null=True),
    _int("unanswered", default="0"),
    _int("last_unanswered_ms", null=True),
    _text("last_failure", null=True),
)

unanswered_rounds = sa.Table(
    "unanswered_rounds",
    metadata,
    sa.Column("transaction_id", sa.Text(), primary_key=True),
    sa.Column("failure", sa.Text(), primary_key=True),
    _text("producer_group"),
    _text("endpoint", null=True),
    _int("first_ms"),
    _int("last_ms"),
    _int("count"),
    sa.Index(None, "last_ms"),
)

# Due checks of groups that fetch them. `lease_until_ms`: by the ticks of the queue's owner; 0: never claimed.
pull_checks = sa.Table(
    "pull_checks",
    metadata,
    sa.Column("transaction_id", sa.Text(), primary_key=True),
    _text("producer_group"),
    _int("queue_id"),
    _text("owner"),
    _int("check_number"),
    _int("due_ms"),
    _int("lease_until_ms"),
    _int("claims"),
    sa.Index(None, "producer_group", "due_ms"),
    sa.Index(None, "queue_id"),
)

# The owner that writes a queue's checks, and its clock.
pull_queues = sa.Table(
    "pull_queues",
    metadata,
    sa.Column("queue_id", sa.Integer(), primary_key=True, autoincrement=False),
    _text("owner"),
    _int("tick_ms"),
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", _ROW_ID, primary_key=True, autoincrement=True),
    _int("at_ms"),
    _text("actor"),
    _text("what"),
    _text("target"),
    _text("reason", null=True),
    _text("before", null=True),
    _text("after", null=True),
    sa.Index("ix_audit_target", "target", "what"),
)

# A link for each entry of the audit; see bridge/core/audit_chain.py. `adopted_ms`: of entries that others wrote.
audit_links = sa.Table(
    "audit_links",
    metadata,
    sa.Column("number", sa.BigInteger(), primary_key=True, autoincrement=False),
    sa.Column("audit_id", sa.BigInteger(), nullable=False, index=True),
    _int("adopted_ms", null=True),
    _text("mac"),
)

# One row; whoever adds a link moves its number first, so that links come one after the other.
audit_turn = _version("audit_turn")

# `id`: offset of the half message * 1024 + queue, so that rows are appended and need no look-up to be referred to.
# `live`: 1 while somebody must still do something for it: not final, or blocked. `at_offset`: the journal record
# that caused the state. `has_half`: 0 where only the op topic knows it.
transactions = sa.Table(
    "transactions",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=False),
    _text("transaction_id"),
    _text("producer_group"),
    _text("state"),
    sa.Column("live", sa.SmallInteger(), nullable=False),
    sa.Column("blocked", sa.SmallInteger(), nullable=False),
    sa.Column("has_half", sa.SmallInteger(), nullable=False),
    _int("queue_id"),
    _int("queue_offset"),
    _int("born_ms"),
    _int("appended_ms"),
    _int("at_offset"),
    _int("first_check_ms", null=True),
    _int("next_due_ms", null=True),
    _int("check_times"),
    _int("base"),
    _int("since_ms", null=True),
    _int("max_checks", null=True),
    _int("max_life_s", null=True),
    _text("resolved_by", null=True),
    _int("ended_ms", null=True),
    _int("published_ms", null=True),
    _int("abandoned_ms", null=True),
    _text("why", null=True),
    _int("parked_offset", null=True),
    _text("idempotency_key", null=True),
    _text("ordering_key", null=True),
    _text("receipts", null=True),
    _text("messages", null=True),
    sa.Index("uq_transactions_transaction_id", "transaction_id", unique=True),
    sa.Index("ix_transactions_state", "live", "state", "born_ms", "id"),
    sa.Index("ix_transactions_group", "producer_group", "live", "state", "born_ms", "id"),
    sa.Index(
        "ix_transactions_abandoned",
        "born_ms",
        "id",
        sqlite_where=sa.text("abandoned_ms IS NOT NULL"),
        postgresql_where=sa.text("abandoned_ms IS NOT NULL"),
    ),
    sa.Index(
        "ix_transactions_ended",
        "queue_id",
        "ended_ms",
        sqlite_where=sa.text("live = 0"),
        postgresql_where=sa.text("live = 0"),
    ),
    sa.Index(
        "ix_transactions_pending",
        "producer_group",
        "appended_ms",
        sqlite_where=sa.text("state = 'PREPARED'"),
        postgresql_where=sa.text("state = 'PREPARED'"),
    ),
    sa.Index(
        "ix_transactions_key",
        "producer_group",
        "idempotency_key",
        sqlite_where=sa.text("idempotency_key IS NOT NULL"),
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    ),
)

# A row per message with a topic or key that the transaction's messages before it do not have.
transaction_keys = sa.Table(
    "transaction_keys",
    metadata,
    sa.Column("topic", sa.Text(), primary_key=True),
    sa.Column("born_ms", sa.BigInteger(), primary_key=True, autoincrement=False),
    sa.Column("id", sa.BigInteger(), primary_key=True, autoincrement=False),
    sa.Column("position", sa.SmallInteger(), primary_key=True, autoincrement=False),
    sa.Column("message_key", sa.LargeBinary(), nullable=True),
    sa.Index(
        "ix_transaction_keys_key",
        "message_key",
        "born_ms",
        "id",
        sqlite_where=sa.text("message_key IS NOT NULL"),
        postgresql_where=sa.text("message_key IS NOT NULL"),
    ),
    sqlite_with_rowid=False,
)

# What the transaction's row does not hold. `source`: 0 journal, 1 op topic; offset there.
timeline_events = sa.Table(
    "timeline_events",
    metadata,
    sa.Column("id", sa.BigInteger(), primary_key=True, autoincrement=False),
    sa.Column("source", sa.SmallInteger(), primary_key=True, autoincrement=False),
    sa.Column("source_offset", sa.BigInteger(), primary_key=True, autoincrement=False),
    _int("at_ms"),
    _text("type"),
    _text("by", null=True),
    _text("members"),
    sqlite_with_rowid=False,
)

projection_positions = sa.Table(
    "projection_positions",
    metadata,
    sa.Column("queue_id", sa.Integer(), primary_key=True, autoincrement=False),
    _int("journal_next"),
    _int("op_next"),
    _int("s"),
    _text("journal_topic_id"),
    _text("op_topic_id"),
    _text("cluster_id"),
)

# Running totals; pending = prepared - committed - rolled_back - parked, `blocked` and `abandoned` are parts of
# `committed`.
group_counts = sa.Table(
    "group_counts",
    metadata,
    sa.Column("producer_group", sa.Text(), primary_key=True),
    _int("prepared"),
    _int("committed"),
    _int("blocked"),
    _int("rolled_back"),
    _int("parked"),
    sa.Column("abandoned", sa.BigInteger(), server_default="0", nullable=False),
)

# Pending transactions by when their half message was appended, in spans of a second, a minute and an hour: running
# totals, so that nobody counts rows to tell ages.
pending_ages = sa.Table(
    "pending_ages",
    metadata,
    sa.Column("span_s", sa.Integer(), primary_key=True),
    sa.Column("begin_s", sa.BigInteger(), primary_key=True),
    sa.Column("producer_group", sa.Text(), primary_key=True),
    _int("pending"),
    sqlite_with_rowid=False,
)

# What the projection held before a rebuild, to name afterwards what Kafka does not know.
projection_previous = sa.Table(
    "projection_previous",
    metadata,
    sa.Column("transaction_id", sa.Text(), primary_key=True),
    _text("producer_group"),
    _text("state"),
    sqlite_with_rowid=False,
)

redrive_jobs = sa.Table(
    "redrive_jobs",
    metadata,
    sa.Column("job_id", sa.Text(), primary_key=True),
    _int("created_ms"),
    _int("updated_ms"),
    _text("actor"),
    _text("reason"),
    _text("filter"),
    _text("action"),
    _int("rate_per_s"),
    _text("state"),
    _text("cursor", null=True),
    _text("owner", null=True),
    _int("lease_until_ms"),
    _text("counts"),
    sa.Index(None, "state"),
)

cluster_identity = sa.Table(
    "cluster_identity",
    metadata,
    sa.Column("topic", sa.Text(), primary_key=True),
    _text("topic_id"),
    _text("cluster_id"),
    _int("recorded_ms"),
)

# Queues whose log is not what was left. A row stays until an operator says what is given up.
queue_halts = sa.Table(
    "queue_halts",
    metadata,
    sa.Column("queue_id", sa.Integer(), primary_key=True, autoincrement=False),
    _text("kind"),
    _text("detail"),
    _int("since_ms"),
)

# Transactions whose log an operator has given up, as the projection knew them. Rebuilding leaves them alone: nothing
# that may have been published is taken for new because its log is gone.
given_up = sa.Table(
    "given_up",
    metadata,
    sa.Column("transaction_id", sa.Text(), primary_key=True),
    _text("producer_group"),
    _text("state"),
    sa.Column("blocked", sa.SmallInteger(), nullable=False),
    _int("queue_id"),
    _int("queue_offset"),
    _int("born_ms"),
    _int("appended_ms"),
    _int("check_times"),
    _text("idempotency_key", null=True),
    _int("given_up_ms"),
    _int("abandoned_ms", null=True),
    sa.Index("ix_given_up_key", "producer_group", "idempotency_key"),
)

leases = sa.Table("leases", metadata, sa.Column("name", sa.Text(), primary_key=True), _text("owner"), _int("until_ms"))

# What each process notes of itself every few seconds. `seen_ms`: by the database's clock, which its own is ahead of.
processes = sa.Table(
    "processes",
    metadata,
    sa.Column("owner", sa.Text(), primary_key=True),
    _int("seen_ms"),
    _int("ahead_ms"),
    _text("settings"),
    _text("calls", null=True),
)

# Events that a webhook has not been told yet. `failure`: why not, the last time it was tried.
webhook_deliveries = sa.Table(
    "webhook_deliveries",
    metadata,
    sa.Column("id", _ROW_ID, primary_key=True, autoincrement=True),
    _text("webhook"),
    _text("event_id"),
    _text("body"),
    _int("created_ms"),
    _int("tries", default="0"),
    _text("failure", null=True),
    sa.Index("uq_webhook_deliveries_event", "webhook", "event_id", unique=True),
)

# How far those who make events have looked, by what they look at.
event_marks = sa.Table("event_marks", metadata, sa.Column("name", sa.Text(), primary_key=True), _text("value"))

# The first of the signing ones makes new MACs, all of them are valid. See bridge/core/keyring.py.
bridge_keys = sa.Table(
    "bridge_keys",
    metadata,
    sa.Column("key_id", sa.Text(), primary_key=True),
    sa.Column("secret", sa.LargeBinary(), nullable=False),
    _int("signs"),
    _int("created_ms"),
)

# By queue: the op offset below which records need no seal.
op_beliefs = sa.Table(
    "op_beliefs",
    metadata,
    sa.Column("queue_id", sa.Integer(), primary_key=True, autoincrement=False),
    _int("op_offset"),
)

# One row; its number moves with every change of principals, grants or keys.
access_version = _version("access_version")

principals = sa.Table("principals", metadata, sa.Column("name", sa.Text(), primary_key=True), _int("created_ms"))

grants = sa.Table(
    "grants",
    metadata,
    sa.Column("principal", sa.Text(), sa.ForeignKey("principals.name", ondelete="CASCADE"), primary_key=True),
    sa.Column("verb", sa.Text(), primary_key=True),
    sa.Column("group_pattern", sa.Text(), primary_key=True),
    sa.Column("topic_pattern", sa.Text(), primary_key=True),
)

# `secret_hash`: SHA-256 of the whole key, in hexadecimal.
api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("key_id", sa.Text(), primary_key=True),
    sa.Column("principal", sa.Text(), sa.ForeignKey("principals.name", ondelete="CASCADE"), nullable=False, index=True),
    _text("label", null=True),
    _text("secret_hash"),
    _int("created_ms"),
    _int("expires_ms", null=True),
    _int("last_used_ms", null=True),
)
