import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Transactional sends in a closed loop: every thread sends, commits in its local transaction, and begins again.
 * The end of a transaction is one-way in RocketMQ's client, so calls are counted, and what became visible beside them.
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
        for (int number = 0; number < threads; number++) {
            workers[number] = new Thread(() -> {
                while (running.get()) {
                    try {
                        SendStatus status = producer.sendMessageInTransaction(new Message(topic, body), null)
                            .getSendStatus();
                        (status == SendStatus.SEND_OK ? sent : failed).increment();
                    } catch (Exception error) {
                        failed.increment();
                    }
                }
            });
            workers[number].start();
        }
        Thread.sleep(warmUpMs);
        long sentBefore = sent.sum();
        long visibleBefore = countVisible(producer, topic);
        long began = System.nanoTime();
        Thread.sleep(measuredMs);
        double seconds = (System.nanoTime() - began) / 1e9;
        long sentMeanwhile = sent.sum() - sentBefore;
        long visibleMeanwhile = countVisible(producer, topic) - visibleBefore;
        running.set(false);
        for (Thread worker : workers) {
            worker.join();
        }
        System.out.printf(
            Locale.ROOT,
            "{\"threads\":%d,\"calls_per_s\":%.1f,\"visible_per_s\":%.1f,\"failed\":%d}%n",
            threads, sentMeanwhile / seconds, visibleMeanwhile / seconds, failed.sum());
        producer.shutdown();
        System.exit(0);
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
            count += producer.maxOffset(queue);
        }
        return count;
    }
}
