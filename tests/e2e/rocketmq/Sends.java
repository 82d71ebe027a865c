import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * One send of each kind that is asked for; a line says what became of each.
 *
 * <p>Arguments: name server, topic, group, AccessKey or "-", SecretKey, kinds (commit, rollback, check, plain, batch, large).
 */
public final class Sends {
    private static final CountDownLatch CHECKED = new CountDownLatch(1);

    private static final class Listener implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object kind) {
            System.out.println("local " + kind);
            switch ((String) kind) {
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                case "check":
                    return LocalTransactionState.UNKNOW;
                default:
                    return LocalTransactionState.COMMIT_MESSAGE;
            }
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            System.out.println("asked " + new String(message.getBody(), StandardCharsets.UTF_8));
            CHECKED.countDown();
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }

    private static Message make(String topic, String text) {
        return new Message(topic, text.getBytes(StandardCharsets.UTF_8));
    }

    private static String send(TransactionMQProducer producer, String topic, String kind) throws Exception {
        switch (kind) {
            case "plain":
                return producer.send(make(topic, kind)).getSendStatus().name();
            case "batch":
                return producer.send(Arrays.asList(make(topic, "batch-1"), make(topic, "batch-2"))).getSendStatus().name();
            case "large":
                return producer.sendMessageInTransaction(make(topic, "large".repeat(2_000)), kind).getSendStatus().name();
            default:
                return producer.sendMessageInTransaction(make(topic, kind), kind).getSendStatus().name();
        }
    }

    public static void main(String[] arguments) throws Exception {
        RPCHook hook = arguments[3].equals("-")
            ? null : new AclClientRPCHook(new SessionCredentials(arguments[3], arguments[4]));
        TransactionMQProducer producer = new TransactionMQProducer(arguments[2], hook);
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(60_000); // as long as a busy machine may take for a first send
        producer.setTransactionListener(new Listener());
        producer.start();
        boolean isAsked = false;
        for (String kind : arguments[5].split(",")) {
            try {
                System.out.println(kind + " " + send(producer, arguments[1], kind));
                isAsked |= kind.equals("check");
            } catch (Exception error) {
                System.out.println(kind + " " + (error.getCause() == null ? error : error.getCause()));
            }
        }
        if (isAsked && !CHECKED.await(40, TimeUnit.SECONDS)) {
            System.out.println("not asked");
        }
        Thread.sleep(1_000); // ends are one-way
        producer.shutdown();
        System.exit(0);
    }
}
