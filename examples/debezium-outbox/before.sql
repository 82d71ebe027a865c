-- What a service with Debezium's outbox event router has: nothing here is the bridge's.
CREATE TABLE orders (id bigint PRIMARY KEY, cents bigint NOT NULL);
CREATE TABLE outbox (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  aggregatetype varchar(255) NOT NULL,
  aggregateid varchar(255) NOT NULL,
  type varchar(255) NOT NULL,
  payload jsonb
);
