// Converts amounts between currencies: the JDK's own HTTP server, JSON over HTTP.
//
// BOOKING_URL, where it is set, says where a converted amount goes. PORT chooses the port.

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class FxService {
    /** What one unit is worth in euros. */
    private static final Map<String, BigDecimal> IN_EUROS = Map.of(
            "EUR", BigDecimal.ONE,
            "USD", new BigDecimal("0.92"),
            "CNY", new BigDecimal("0.128"));

    /** What W3C Trace Context has every service hand on; nothing of the sidecar is known here. */
    private static final List<String> CORRELATION = List.of("traceparent", "tracestate");

    private static final HttpClient CLIENT = HttpClient.newHttpClient();
    private static final String BOOKING_URL = System.getenv("BOOKING_URL");

    public static void main(String[] args) throws IOException {
        int port = Integer.parseInt(System.getenv().getOrDefault("PORT", "8080"));
        // Without it a reply waits for the acknowledgement of its own head.
        System.setProperty("sun.net.httpserver.nodelay", "true");
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 0);
        server.createContext("/conversions", FxService::convert);
        server.setExecutor(Executors.newFixedThreadPool(16));
        server.start();
    }

    private static void convert(HttpExchange exchange) throws IOException {
        String body = new String(exchange.getRequestBody().readAllBytes(), "UTF-8");
        String order = field(body, "order_id");
        String from = field(body, "currency");
        String to = field(body, "target_currency");
        BigDecimal rate = IN_EUROS.get(from).divide(IN_EUROS.get(to), 6, RoundingMode.HALF_EVEN);
        long amount = new BigDecimal(field(body, "amount")).multiply(rate)
                .setScale(0, RoundingMode.HALF_EVEN).longValueExact();
        String booking = "";
        if (BOOKING_URL != null) {
            HttpResponse<String> booked = book(exchange, order, amount, to);
            if (booked.statusCode() != 200) {
                reply(exchange, 502, "{\"error\":\"the ledger answered " + booked.statusCode() + "\"}");
                return;
            }
            booking = ",\"booking\":" + booked.body();
        }
        reply(exchange, 200, """
                {"amount":%d,"currency":"%s","rate":"%s"%s}""".formatted(amount, to, rate, booking));
    }

    private static HttpResponse<String> book(HttpExchange exchange, String order, long amount, String currency)
            throws IOException {
        HttpRequest.Builder call = HttpRequest.newBuilder(URI.create(BOOKING_URL))
                .timeout(Duration.ofSeconds(10))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString("""
                        {"order_id":"%s","amount":%d,"currency":"%s"}""".formatted(order, amount, currency)));
        for (String name : CORRELATION) {
            String value = exchange.getRequestHeaders().getFirst(name);
            if (value != null) {
                call.header(name, value);
            }
        }
        try {
            return CLIENT.send(call.build(), HttpResponse.BodyHandlers.ofString());
        } catch (InterruptedException stopped) {
            throw new IOException(stopped);
        }
    }

    /**
     * Reads a field of a flat object of plain words and whole numbers. That is all the contract lets
     * through, so nothing more is read here; a service with larger bodies would use a JSON library.
     */
    private static String field(String object, String name) {
        Matcher found = Pattern.compile("\"" + name + "\"\\s*:\\s*\"?([A-Za-z0-9-]+)").matcher(object);
        if (!found.find()) {
            throw new IllegalArgumentException("no " + name);
        }
        return found.group(1);
    }

    private static void reply(HttpExchange exchange, int status, String body) throws IOException {
        byte[] bytes = body.getBytes("UTF-8");
        exchange.getResponseHeaders().set("Content-Type", "application/json");
        exchange.sendResponseHeaders(status, bytes.length);
        try (var out = exchange.getResponseBody()) {
            out.write(bytes);
        }
    }
}
