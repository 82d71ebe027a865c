-- Once, while the connector runs. Debezium takes the order of rows from the write-ahead log; here a column has it.
BEGIN;
LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE;
CREATE TABLE outbox_before AS SELECT id FROM outbox; -- what the connector has published once it has caught up with this
ALTER TABLE outbox ADD COLUMN position bigint GENERATED ALWAYS AS IDENTITY;
CREATE INDEX outbox_in_order ON outbox (aggregateid, position);

-- `python -m outbox.ddl postgresql` has it: who publishes a row now, and what was refused and why
CREATE TABLE outbox_lease (
  source varchar(64) NOT NULL,
  row_id varchar(64) NOT NULL,
  state varchar(9) NOT NULL,
  token varchar(36),
  free_ms bigint NOT NULL,
  attempts integer NOT NULL,
  reason varchar(500),
  PRIMARY KEY (source, row_id)
);
CREATE INDEX ix_outbox_lease_token ON outbox_lease (token);
COMMIT;
