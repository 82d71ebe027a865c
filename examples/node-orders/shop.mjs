// A shop whose orders are announced on Kafka, with Node.js (20.10 or newer) and nothing else: node shop.mjs PORT
// Its database is a folder: a file for each order, named by the transaction id, made whole or not at all.
import { createHmac, randomUUID, timingSafeEqual } from "node:crypto";
import { linkSync, mkdirSync, readFileSync, unlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";

const BRIDGE = process.env.BRIDGE_URL ?? "http://127.0.0.1:8780";
const KEY = Buffer.from(process.env.OUTBOX_SECRET.replace("whsec_", ""), "base64");
const GROUP = "node-orders";
const FOLDER = process.env.ORDERS ?? "orders";
mkdirSync(FOLDER, { recursive: true });

// The local transaction. False if there is a file of this name: an order, or a bar.
function write(id, text) {
  const whole = `${FOLDER}/.${randomUUID()}`; // of no other process: a killed one may have left its own beside an order
  writeFileSync(whole, text, { flush: true });
  try {
    linkSync(whole, `${FOLDER}/${id}`);
    return true;
  } catch (error) {
    if (error.code === "EEXIST") return false;
    throw error;
  } finally {
    unlinkSync(whole);
  }
}

// Undefined for what is no JSON: all else that goes wrong here is not the caller's fault.
function read(body) {
  try {
    return JSON.parse(body);
  } catch {
    return undefined;
  }
}

async function call(path, body) {
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(BRIDGE + path, { method: "POST", headers, body, signal: AbortSignal.timeout(10_000) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

async function place(body) {
  const order = read(body);
  if (typeof order?.order_id !== "string") return [400, { error: "not an order" }];
  const messages = [{ topic: "orders.created", key: order.order_id, value: order }];
  const prepared = await call("/v1/transactions", JSON.stringify({ producer_group: GROUP, messages }));
  if (!write(prepared.transaction_id, JSON.stringify(order))) return [409, { error: "asked about before it was written" }];
  // If nobody hears this, the bridge asks what became of it.
  await call(`/v1/transactions/${prepared.transaction_id}/commit`).catch((error) => console.error(error.message));
  return [201, order];
}

// Standard Webhooks: one of the signatures is ours, and the call is not an old one.
function isSigned(headers, body) {
  const { "webhook-id": id, "webhook-timestamp": time, "webhook-signature": signatures = "" } = headers;
  if (!(Math.abs(Date.now() / 1000 - Number(time)) < 300)) return false;
  const ours = createHmac("sha256", KEY).update(`${id}.${time}.`).update(body).digest();
  return signatures.split(" ").some((each) => {
    const theirs = Buffer.from(each.replace("v1,", ""), "base64");
    return theirs.length === ours.length && timingSafeEqual(theirs, ours);
  });
}

// Nothing there: a bar is written first, so that a late order fails.
function decide({ transaction_id, nonce }) {
  const isBarred = write(transaction_id, "") || readFileSync(`${FOLDER}/${transaction_id}`).length === 0;
  return { transaction_id, nonce, resolution: isBarred ? "ROLLBACK" : "COMMIT" };
}

function answer(headers, body) {
  if (!isSigned(headers, body)) return [401, { error: "not signed by the bridge" }];
  const { type, producer_group, checks, challenge } = read(body) ?? {};
  const isCall = Array.isArray(checks) && checks.every((check) => /^[0-9a-z]{28}$/.test(check?.transaction_id));
  if (!isCall || type !== "transaction.check" || producer_group !== GROUP) return [400, { error: "not a check of this group" }];
  return [200, { resolutions: checks.map(decide), challenge }];
}

createServer(async (request, response) => {
  let [status, document] = [404, { error: "POST /orders or /outbox-checks" }];
  try {
    const parts = [];
    let size = 0;
    for await (const part of request) if ((size += part.length) <= 9 << 20) parts.push(part);
    const body = Buffer.concat(parts);
    if (size > 9 << 20) [status, document] = [413, { error: "too large" }];
    else if (request.method === "POST" && request.url === "/orders") [status, document] = await place(body);
    else if (request.method === "POST" && request.url === "/outbox-checks") [status, document] = answer(request.headers, body);
  } catch (error) {
    [status, document] = [503, { error: error.message }];
  }
  response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(document));
}).listen(Number(process.argv[2]), "127.0.0.1");
