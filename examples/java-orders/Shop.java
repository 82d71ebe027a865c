// A shop whose orders are announced on Kafka, with Java 17 and Jackson: java -cp 'lib/*' Shop.java PORT
// Its database is a folder: a file for each order, named by the transaction id, made whole or not at all.
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.*;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.Executors;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

public class Shop {
    static final String GROUP = "java-orders";
    static final Map<String, String> ENV = System.getenv();
    static final String BRIDGE = ENV.getOrDefault("BRIDGE_URL", "http://127.0.0.1:8780");
    static final Path FOLDER = Path.of(ENV.getOrDefault("ORDERS", "orders"));
    static final byte[] KEY = Base64.getDecoder().decode(ENV.get("OUTBOX_SECRET").replace("whsec_", ""));
    static final ObjectMapper JSON = new ObjectMapper();
    static final HttpClient CLIENT = HttpClient.newHttpClient();

    record Answer(int status, JsonNode document) {}

    static Answer refuse(int status, String why) {
        return new Answer(status, JSON.createObjectNode().put("error", why));
    }

    /** The local transaction. False if there is a file of this name: an order, or a bar. */
    static boolean write(String id, String text) throws IOException {
        Path whole = Files.createTempFile(FOLDER, ".new-", "");
        try {
            Files.writeString(whole, text, StandardOpenOption.SYNC);
            Files.createLink(FOLDER.resolve(id), whole);
            return true;
        } catch (FileAlreadyExistsException error) {
            return false;
        } finally {
            Files.delete(whole);
        }
    }

    static JsonNode call(String path, JsonNode body) throws IOException, InterruptedException {
        var request = HttpRequest.newBuilder(URI.create(BRIDGE + path)).timeout(Duration.ofSeconds(10))
            .header("Content-Type", "application/json").POST(HttpRequest.BodyPublishers.ofString(body.toString()));
        var response = CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofString());
        if (response.statusCode() >= 300) throw new IOException(path + ": " + response.body());
        return JSON.readTree(response.body());
    }

    static Answer place(byte[] body) throws IOException, InterruptedException {
        JsonNode order = JSON.readTree(body);
        ObjectNode prepare = JSON.createObjectNode().put("producer_group", GROUP);
        prepare.putArray("messages").addObject().put("topic", "orders.created")
            .put("key", order.get("order_id").asText()).set("value", order);
        String id = call("/v1/transactions", prepare).get("transaction_id").asText();
        if (!write(id, order.toString())) return refuse(409, "asked about before it was written");
        try {
            call("/v1/transactions/" + id + "/commit", JSON.createObjectNode());
        } catch (IOException error) {
            System.err.println(error); // the bridge will ask what became of it
        }
        return new Answer(201, order);
    }

    /** Standard Webhooks: one of the signatures is ours, and the call is not an old one. */
    static boolean isSigned(HttpExchange exchange, byte[] body) throws Exception {
        var headers = exchange.getRequestHeaders();
        String id = headers.getFirst("webhook-id"), time = headers.getFirst("webhook-timestamp");
        String signatures = headers.getFirst("webhook-signature");
        if (id == null || time == null || signatures == null || !time.matches("\\d{1,12}")) return false;
        if (Math.abs(System.currentTimeMillis() / 1000 - Long.parseLong(time)) > 300) return false;
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(KEY, "HmacSHA256"));
        mac.update((id + "." + time + ".").getBytes());
        byte[] ours = ("v1," + Base64.getEncoder().encodeToString(mac.doFinal(body))).getBytes();
        return Arrays.stream(signatures.split(" ")).anyMatch(each -> MessageDigest.isEqual(each.getBytes(), ours));
    }

    static Answer answer(byte[] body) throws IOException {
        JsonNode asked = JSON.readTree(body);
        if (!asked.path("type").asText().equals("transaction.check") || !asked.path("producer_group").asText().equals(GROUP))
            return refuse(400, "not a check of this group");
        ObjectNode document = JSON.createObjectNode();
        var resolutions = document.putArray("resolutions");
        for (JsonNode check : asked.path("checks")) {
            String id = check.path("transaction_id").asText();
            if (!id.matches("[0-9a-z]{28}")) return refuse(400, "no transaction id");
            // nothing there: a bar is written first, so that a late order fails
            boolean isBarred = write(id, "") || Files.size(FOLDER.resolve(id)) == 0;
            resolutions.addObject().put("transaction_id", id).put("nonce", check.path("nonce").asText())
                .put("resolution", isBarred ? "ROLLBACK" : "COMMIT");
        }
        if (asked.has("challenge")) document.set("challenge", asked.get("challenge"));
        return new Answer(200, document);
    }

    static void serve(HttpExchange exchange) throws IOException {
        Answer answer;
        byte[] body = exchange.getRequestBody().readNBytes((9 << 20) + 1);
        try {
            if (body.length > 9 << 20) answer = refuse(413, "too large");
            else if (exchange.getRequestURI().getPath().equals("/orders")) answer = place(body);
            else if (!isSigned(exchange, body)) answer = refuse(401, "not signed by the bridge");
            else answer = answer(body);
        } catch (com.fasterxml.jackson.core.JacksonException | NullPointerException error) {
            answer = refuse(400, "not the JSON that was asked for");
        } catch (Exception error) {
            answer = refuse(503, error.toString());
        }
        byte[] text = answer.document().toString().getBytes("UTF-8");
        exchange.getResponseHeaders().set("Content-Type", "application/json");
        exchange.sendResponseHeaders(answer.status(), text.length);
        exchange.getResponseBody().write(text);
        exchange.close();
    }

    public static void main(String[] words) throws IOException {
        Files.createDirectories(FOLDER);
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(words[0])), 512);
        server.createContext("/orders", Shop::serve);
        server.createContext("/outbox-checks", Shop::serve);
        server.setExecutor(Executors.newFixedThreadPool(32));
        server.start();
    }
}
