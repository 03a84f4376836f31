"""A fraud check as it may have run for years: JSON over HTTP, standard library only.

Nothing here knows of Hermes. PORT chooses the port.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RISKY_NETWORKS = ("198.51.100.", "203.0.113.")


def assess(order):
    rules = []
    if order["amount_cny"] > 10_000:
        rules.append("large_amount")
    if order["ip_address"].startswith(RISKY_NETWORKS):
        rules.append("risky_network")
    if not order.get("device_fingerprint"):
        rules.append("unknown_device")
    score = min(100, 5 + 30 * len(rules))
    level = "low" if score < 40 else "medium" if score < 80 else "high"
    return {"risk_score": score, "risk_level": level, "rules_triggered": rules}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # a reply leaves in one piece

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/api/v1/risk":
            self.reply(404, {"error": "not found"})
        else:
            self.reply(200, assess(json.loads(body)))

    def do_GET(self):
        self.reply(404, {"error": "not found"})

    def reply(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    port = int(os.environ.get("PORT", "5000"))
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
