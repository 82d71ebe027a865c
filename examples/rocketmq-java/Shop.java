// A shop that tells of paid orders with RocketMQ's own client: java -cp 'lib/*' Shop.java PORT
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.sql.*;
import java.util.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.message.*;

public class Shop implements TransactionListener {
    static final Map<String, String> ENV = System.getenv();
    static final String DATABASE = "jdbc:h2:file:" + ENV.getOrDefault("DATABASE", "./shop") + ";WRITE_DELAY=0"; // durable

    /** The number of rows that a statement changed. */
    static int run(Connection database, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = database.prepareStatement(sql)) {
            for (int place = 0; place < values.length; place++) statement.setObject(place + 1, values[place]);
            return statement.executeUpdate();
        }
    }

    /** Runs when the half message is stored: an UPDATE and its record. */
    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object order) {
        try (Connection database = DriverManager.getConnection(DATABASE)) {
            database.setAutoCommit(false);
            run(database, "INSERT INTO transaction_record VALUES (?, TRUE)", message.getTransactionId());
            if (run(database, "UPDATE orders SET is_paid = TRUE WHERE id = ? AND NOT is_paid", order) == 0) {
                return LocalTransactionState.ROLLBACK_MESSAGE; // and the database at the end of the block
            }
            database.commit();
            return LocalTransactionState.COMMIT_MESSAGE;
        } catch (SQLException error) {
            return LocalTransactionState.UNKNOW; // the bridge asks later
        }
    }

    /** Runs when the bridge asks. A record that is made here bars the UPDATE, should it come later. */
    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        try (Connection database = DriverManager.getConnection(DATABASE)) {
            run(database, "MERGE INTO transaction_record r USING (VALUES (?)) v (id) ON r.id = v.id "
                + "WHEN NOT MATCHED THEN INSERT VALUES (v.id, FALSE)", message.getTransactionId());
            PreparedStatement query = database.prepareStatement("SELECT is_committed FROM transaction_record WHERE id = ?");
            query.setString(1, message.getTransactionId());
            ResultSet found = query.executeQuery();
            return found.next() && found.getBoolean(1)
                ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        } catch (SQLException error) {
            return LocalTransactionState.UNKNOW;
        }
    }

    public static void main(String[] arguments) throws Exception {
        try (Connection database = DriverManager.getConnection(DATABASE)) {
            run(database, "CREATE TABLE IF NOT EXISTS orders (id VARCHAR(64) PRIMARY KEY, is_paid BOOLEAN)");
            run(database, "CREATE TABLE IF NOT EXISTS transaction_record (id VARCHAR(64) PRIMARY KEY, is_committed BOOLEAN)");
        }
        TransactionMQProducer producer = new TransactionMQProducer("rocketmq-java", List.of("orders-paid")); // its topics:
        // the client says at once that it is there, and not with its first send, so a shop that was restarted is asked
        producer.setNamesrvAddr(ENV.getOrDefault("NAME_SERVER", "127.0.0.1:9876"));
        producer.setTransactionListener(new Shop());
        producer.start();
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])), 0);
        server.createContext("/orders/", exchange -> answer(exchange, producer)); // PUT /orders/42, POST /orders/42/pay
        server.start();
    }

    static void answer(HttpExchange exchange, TransactionMQProducer producer) throws java.io.IOException {
        String[] path = exchange.getRequestURI().getPath().split("/");
        int status = 200;
        try (Connection database = DriverManager.getConnection(DATABASE)) {
            if (exchange.getRequestMethod().equals("PUT")) {
                run(database, "INSERT INTO orders VALUES (?, FALSE)", path[2]);
            } else if (path.length == 4) {
                Message message = new Message("orders-paid", "paid", path[2], ("{\"order_id\": \"" + path[2] + "\"}").getBytes());
                TransactionSendResult result = producer.sendMessageInTransaction(message, path[2]);
                status = result.getLocalTransactionState() == LocalTransactionState.COMMIT_MESSAGE ? 200 : 409;
            }
        } catch (Exception error) {
            status = 503; // not known: look at the order
        }
        exchange.sendResponseHeaders(status, -1);
        exchange.close();
    }
}
