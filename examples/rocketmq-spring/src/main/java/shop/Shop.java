package shop;

import static org.apache.rocketmq.spring.core.RocketMQLocalTransactionState.COMMIT;
import static org.apache.rocketmq.spring.core.RocketMQLocalTransactionState.ROLLBACK;

import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.beans.factory.config.BeanPostProcessor;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.dao.DuplicateKeyException;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.transaction.support.TransactionTemplate;
import org.springframework.web.bind.annotation.*;

/** A paid order earns its customer credits, which another service books: an UPDATE and a message, both or neither. */
@SpringBootApplication
@RestController
public class Shop {
    record Order(String customer, long cents) {}

    record Paid(String orderId, String customer, long credits) {}

    private final JdbcTemplate database;
    private final RocketMQTemplate rocketmq;

    Shop(JdbcTemplate database, RocketMQTemplate rocketmq) {
        this.database = database;
        this.rocketmq = rocketmq;
    }

    public static void main(String[] arguments) {
        SpringApplication.run(Shop.class, arguments);
    }

    /** With its topics the client says at once that it is there, and not with its first send: a restarted shop is asked. */
    @Bean
    static BeanPostProcessor nameTopics() {
        return new BeanPostProcessor() {
            @Override
            public Object postProcessBeforeInitialization(Object bean, String name) {
                if (bean instanceof DefaultMQProducer producer) producer.setTopics(List.of("orders-paid"));
                return bean;
            }
        };
    }

    @PutMapping("/orders/{id}")
    void create(@PathVariable("id") String id, @RequestBody Order order) {
        database.update("INSERT INTO orders VALUES (?, ?, ?, FALSE)", id, order.customer(), order.cents());
    }

    @PostMapping("/orders/{id}/pay")
    ResponseEntity<String> pay(@PathVariable("id") String id) {
        Order order = database.queryForObject("SELECT customer, cents FROM orders WHERE id = ?",
            (row, number) -> new Order(row.getString(1), row.getLong(2)), id);
        var paid = new Paid(id, order.customer(), order.cents() / 100);
        var message = MessageBuilder.withPayload(paid).setHeader("KEYS", order.customer()).build();
        var result = rocketmq.sendMessageInTransaction("orders-paid", message, id);
        return result.getLocalTransactionState() == LocalTransactionState.COMMIT_MESSAGE
            ? ResponseEntity.ok("paid\n") : ResponseEntity.status(409).body("not paid now: look at the order\n");
    }

    @RocketMQTransactionListener
    static class Payments implements RocketMQLocalTransactionListener {
        private final JdbcTemplate database;
        private final TransactionTemplate transaction;

        Payments(JdbcTemplate database, TransactionTemplate transaction) {
            this.database = database;
            this.transaction = transaction;
        }

        /** Runs when the half message is stored. If it throws, the bridge asks later. */
        @Override
        public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object orderId) {
            return transaction.execute(status -> {
                database.update("INSERT INTO transaction_record VALUES (?, TRUE)", idOf(message));
                if (database.update("UPDATE orders SET is_paid = TRUE WHERE id = ? AND NOT is_paid", orderId) == 1) {
                    return COMMIT;
                }
                status.setRollbackOnly();
                return ROLLBACK;
            });
        }

        /** Runs when the bridge asks. A record that is made here bars the UPDATE, should it come later. */
        @Override
        public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
            try {
                database.update("INSERT INTO transaction_record VALUES (?, FALSE)", idOf(message));
                return ROLLBACK;
            } catch (DuplicateKeyException known) {
                String query = "SELECT is_committed FROM transaction_record WHERE id = ?";
                return database.queryForObject(query, Boolean.class, idOf(message)) ? COMMIT : ROLLBACK;
            }
        }

        private static String idOf(Message message) {
            return (String) message.getHeaders().get("rocketmq_TRANSACTION_ID");
        }
    }
}
