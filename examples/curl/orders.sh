#!/usr/bin/env bash
# Orders in SQLite, announced on Kafka, with nothing but curl, jq and sqlite3.
#
#   ./orders.sh place 42 1990     an order: number and cents
#   ./orders.sh answer-checks     asks again and again what became of unfinished ones, and answers
#
# `answer-checks once` asks once. Kill either at any point.
set -euo pipefail

BRIDGE_URL=${BRIDGE_URL:-http://127.0.0.1:8780}
DATABASE=${DATABASE:-orders.db}
GROUP=curl-orders
TOPIC=orders.created

# POST PATH [BODY]: repeats what got no answer; each call here says the same however often it comes.
post() {
  local replies
  replies=$(curl --silent --show-error --fail-with-body --max-time 45 --retry 3 --retry-all-errors \
    --header 'Content-Type: application/json' --data "${2:-}" "$BRIDGE_URL$1") || {
    echo "$replies" >&2
    return 1
  }
  jq --slurp --compact-output last <<<"$replies" # before it: what earlier tries were told
}

# Durable, and all or nothing; waits up to 5 s for another writer.
sql() {
  sqlite3 -bail -batch -cmd '.timeout 5000' "$DATABASE"
}

create_tables() {
  sql <<'SQL'
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS transaction_record (transaction_id TEXT PRIMARY KEY, state TEXT NOT NULL) WITHOUT ROWID;
SQL
}

place() {
  local number=$1 cents=$2 prepared id
  [[ $number =~ ^[0-9]{1,15}$ && $cents =~ ^[0-9]{1,15}$ ]] || { echo "an order is two numbers" >&2; exit 2; }
  # the key makes a repeat of the prepare the same transaction
  prepared=$(jq --null-input --compact-output --arg group "$GROUP" --arg topic "$TOPIC" --arg run "$(new_key)" \
    --argjson number "$((10#$number))" --argjson cents "$((10#$cents))" '
      {producer_group: $group, idempotency_key: $run,
       messages: [{topic: $topic, key: ($number | tostring), value: {number: $number, cents: $cents}}]}')
  prepared=$(post /v1/transactions "$prepared")
  id=$(jq --exit-status --raw-output 'select(.state == "PREPARED").transaction_id' <<<"$prepared")

  # the local transaction: the record fails if a check has been answered ROLLBACK before
  if ! sql <<SQL
PRAGMA synchronous = FULL;
BEGIN IMMEDIATE;
INSERT INTO transaction_record VALUES ('$id', 'written');
INSERT INTO orders VALUES ($number, $cents);
COMMIT;
SQL
  then
    # no rollback call: what became of it is what the check finds out
    echo "order $number was not placed" >&2
    exit 1
  fi

  # an answer lost here does no harm: the check finds the record
  post "/v1/transactions/$id/commit" | jq --compact-output '{transaction_id, state, receipts}'
}

answer_checks() {
  local wait_seconds=$1 call answers
  call=$(post "/v1/producer-groups/$GROUP/checks/claim" "{\"wait_seconds\": $wait_seconds}")
  answers=$(jq --raw-output '.checks[] | [.transaction_id, .nonce] | @tsv' <<<"$call" |
    while IFS=$'\t' read -r id nonce; do
      jq --null-input --compact-output --arg id "$id" --arg nonce "$nonce" --arg resolution "$(look_up "$id")" \
        '{transaction_id: $id, nonce: $nonce, resolution: $resolution}'
    done | jq --slurp --compact-output 'map(select(.resolution != ""))')
  [[ $answers == "[]" ]] || post /v1/resolutions "{\"resolutions\": $answers}" | jq --compact-output '.results[]'
}

# COMMIT or ROLLBACK. What is missing is barred first, so that a late local transaction fails. Nothing if locked.
look_up() {
  local id=$1
  [[ $id =~ ^[0-9a-z]{28}$ ]] || return 0
  sql <<SQL || true
PRAGMA synchronous = FULL;
INSERT OR IGNORE INTO transaction_record VALUES ('$id', 'barred');
SELECT CASE state WHEN 'written' THEN 'COMMIT' ELSE 'ROLLBACK' END FROM transaction_record WHERE transaction_id = '$id';
SQL
}

new_key() {
  od -An -N16 -tx1 /dev/urandom | tr -d ' \n'
}

create_tables
case "${1:-}" in
  place) place "${2:?a number}" "${3:?cents}" ;;
  answer-checks)
    if [[ ${2:-} == once ]]; then answer_checks 0; else while true; do answer_checks 30 || sleep 1; done; fi ;;
  *) sed -n 's/^# \{0,1\}//; 2,7p' "$0" >&2; exit 2 ;;
esac
