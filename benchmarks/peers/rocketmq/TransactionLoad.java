import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Transactional sends in a closed loop: every thread sends, commits in its local transaction, and begins again.
 * The end of a transaction is one-way in RocketMQ's client, so calls are counted, and what became visible beside them;
 * -1 where the name server is the bridge's door, which has no offsets of topics: the line "measuring" says since when.
 *
 * <p>Arguments: name server, topic, threads, seconds to warm up, seconds to measure, bytes of a body.
 */
public final class TransactionLoad {
    private static final class AlwaysCommits implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int threads = Integer.parseInt(arguments[2]);
        long warmUpMs = Long.parseLong(arguments[3]) * 1000;
        long measuredMs = Long.parseLong(arguments[4]) * 1000;
        byte[] body = new byte[Integer.parseInt(arguments[5])];
        Arrays.fill(body, (byte) 'x');

        TransactionMQProducer producer = new TransactionMQProducer("bench-" + topic);
        producer.setNamesrvAddr(arguments[0]);
        producer.setTransactionListener(new AlwaysCommits());
        producer.start();
        createTopic(producer, topic, body);

        AtomicBoolean running = new AtomicBoolean(true);
        LongAdder sent = new LongAdder();
        LongAdder failed = new LongAdder();
        Thread[] workers = new Thread[threads];
        AtomicBoolean measuring = new AtomicBoolean();
        long[][] tookNs = new long[threads][1 << 16];
        int[] counts = new int[threads];
        for (int number = 0; number < threads; number++) {
            final int own = number;
            workers[number] = new Thread(() -> {
                while (running.get()) {
                    long sentAt = System.nanoTime();
                    try {
                        SendStatus status = producer.sendMessageInTransaction(new Message(topic, body), null)
                            .getSendStatus();
                        (status == SendStatus.SEND_OK ? sent : failed).increment();
                    } catch (Exception error) {
                        failed.increment();
                    }
                    if (measuring.get()) {
                        if (counts[own] == tookNs[own].length) {
                            tookNs[own] = Arrays.copyOf(tookNs[own], 2 * counts[own]);
                        }
                        tookNs[own][counts[own]++] = System.nanoTime() - sentAt;
                    }
                }
            });
            workers[number].start();
        }
        Thread.sleep(warmUpMs);
        long sentBefore = sent.sum();
        long visibleBefore = countVisible(producer, topic);
        long began = System.nanoTime();
        measuring.set(true);
        System.out.println("measuring");
        Thread.sleep(measuredMs);
        measuring.set(false);
        double seconds = (System.nanoTime() - began) / 1e9;
        long sentMeanwhile = sent.sum() - sentBefore;
        long visibleMeanwhile = visibleBefore < 0 ? 0 : countVisible(producer, topic) - visibleBefore;
        System.out.println("measured");
        running.set(false);
        for (Thread worker : workers) {
            worker.join();
        }
        long[] sorted = sort(tookNs, counts);
        System.out.printf(
            Locale.ROOT,
            "{\"threads\":%d,\"calls_per_s\":%.1f,\"visible_per_s\":%.1f,\"failed\":%d,\"sent\":%d,"
                + "\"p50_ms\":%.3f,\"p99_ms\":%.3f}%n",
            threads, sentMeanwhile / seconds, visibleMeanwhile / seconds, failed.sum(), sent.sum() + 1,
            sorted[sorted.length / 2] / 1e6, sorted[(int) (sorted.length * 0.99)] / 1e6);
        producer.shutdown();
        System.exit(0);
    }

    private static long[] sort(long[][] tookNs, int[] counts) {
        long[] all = new long[Arrays.stream(counts).sum()];
        int at = 0;
        for (int own = 0; own < counts.length; own++) {
            System.arraycopy(tookNs[own], 0, all, at, counts[own]);
            at += counts[own];
        }
        Arrays.sort(all);
        return all;
    }

    /** The broker makes a topic with its first message; the client hears of it a moment later. */
    private static void createTopic(TransactionMQProducer producer, String topic, byte[] body) throws Exception {
        for (int attempt = 0; attempt < 100; attempt++) {
            try {
                producer.send(new Message(topic, body));
                return;
            } catch (Exception error) {
                Thread.sleep(100);
            }
        }
        throw new IllegalStateException("the broker does not take messages");
    }

    private static long countVisible(TransactionMQProducer producer, String topic) throws Exception {
        long count = 0;
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            try {
                count += producer.maxOffset(queue);
            } catch (MQClientException error) {
                return -1;
            }
        }
        return count;
    }
}
