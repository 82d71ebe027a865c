import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The scenario of RocketMQ's own TransactionalMsgIT, for any name server: by its number modulo 5 a message is committed,
 * rolled back, or left unknown until one of its checks says commit (the first, the second) or roll back.
 *
 * <p>Writes a line for each thing that happened: `sent`, `unknown-send`, `check`, `committed`, `rolled-back`, each with
 * the body.
 */
public final class Transactions {
    private static final Map<String, AtomicInteger> CHECKS = new ConcurrentHashMap<>();
    private static final Map<String, LocalTransactionState> DECISIONS = new ConcurrentHashMap<>();
    private static CountDownLatch decided;

    private static synchronized void tell(String what, String body) {
        System.out.println(what + " " + body);
    }

    /** The first decision about a message stands, as it would in a database. */
    private static LocalTransactionState decide(String body, boolean commit) {
        LocalTransactionState wanted =
            commit ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        LocalTransactionState known = DECISIONS.putIfAbsent(body.trim(), wanted);
        if (known != null) {
            return known;
        }
        tell(commit ? "committed" : "rolled-back", body);
        decided.countDown();
        return wanted;
    }

    private static String bodyOf(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static int kindOf(String body) {
        return Integer.parseInt(body.substring(body.indexOf('-') + 1, body.indexOf(' ') < 0 ? body.length() : body.indexOf(' '))) % 5;
    }

    private static final class Listener implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            String body = bodyOf(message);
            switch (kindOf(body)) {
                case 0:
                    return decide(body, true);
                case 1:
                    return decide(body, false);
                case 2:
                    throw new IllegalStateException("the database is away");
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String body = bodyOf(message);
            int times = CHECKS.computeIfAbsent(body, unused -> new AtomicInteger()).incrementAndGet();
            tell("check", body);
            if (!body.startsWith(message.getKeys())) {
                tell("strange-keys", body);
            }
            switch (kindOf(body)) {
                case 2:
                    return decide(body, true);
                case 3:
                    return times < 2 ? LocalTransactionState.UNKNOW : decide(body, true);
                case 4:
                    return decide(body, false);
                default: // its end was lost, or never sent, as the answer to its send was
                    tell("late-check", body);
                    LocalTransactionState known = DECISIONS.get(body.trim());
                    return known != null ? known : decide(body, false);
            }
        }
    }

    /** A send that fails is tried again with the same Message, whose key stays: it is the same transaction. */
    private static void send(TransactionMQProducer producer, Message message, String body, int number)
        throws InterruptedException {
        for (int tries = 0; tries < 200; tries++) {
            try {
                TransactionSendResult result = producer.sendMessageInTransaction(message, number);
                boolean isStored = result.getSendStatus() == SendStatus.SEND_OK;
                tell(isStored ? "sent" : "unknown-send", body);
                if (!isStored) { // the client has run nothing and rolls back, whatever a check may have said meanwhile
                    decide(body, false);
                }
                return;
            } catch (MQClientException error) {
                if (error.getResponseCode() == 13) {
                    tell("ended-before", body);
                    return;
                }
                Thread.sleep(200);
            }
        }
        tell("not-sent", body);
    }

    /** What instances before this one have decided, as they wrote it. */
    private static void remember(Path told) throws IOException {
        for (String line : Files.readAllLines(told)) {
            String body = line.substring(line.indexOf(' ') + 1).trim();
            if (line.startsWith("committed ")) {
                DECISIONS.put(body, LocalTransactionState.COMMIT_MESSAGE);
            } else if (line.startsWith("rolled-back ")) {
                DECISIONS.put(body, LocalTransactionState.ROLLBACK_MESSAGE);
            }
        }
    }

    /**
     * Arguments: name server, topic, group, number of messages, bytes of padding, seconds to wait for checks; then, if
     * instances before it were killed, the number of its first message and the file that all of them write to.
     * With no messages of its own it waits for a check of one.
     */
    public static void main(String[] arguments) throws Exception {
        int first = 0;
        if (arguments.length > 6) {
            first = Integer.parseInt(arguments[6]);
            remember(Path.of(arguments[7]));
        }
        int count = Integer.parseInt(arguments[3]);
        String padding = " ".repeat(Integer.parseInt(arguments[4]));
        decided = new CountDownLatch(Math.max(count, 1));
        TransactionMQProducer producer = new TransactionMQProducer(arguments[2]);
        producer.setNamesrvAddr(arguments[0]);
        producer.setTransactionListener(new Listener());
        producer.start();
        for (int number = first; number < first + count; number++) {
            String body = "order-" + number;
            Message message = new Message(arguments[1], "paid", body, (body + padding).getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("shop", "one");
            send(producer, message, body, number);
        }
        boolean isDone = decided.await(Long.parseLong(arguments[5]), TimeUnit.SECONDS);
        Thread.sleep(1_500); // ends are one-way
        producer.shutdown();
        tell(isDone ? "done" : "not-done", "");
        System.exit(isDone ? 0 : 1);
    }
}
