"""An agent and a client as articles about agents over Consul show them.

    article.py serve PORT [REPORTS]      the agent; REPORTS is where it posts what became of a task
    article.py call CONSUL INPUT CONTEXT one call through Consul's health API; prints the reply

Standard library only. Neither knows of any sidecar.
"""

import functools
import hashlib
import http.server
import json
import sys
import time
import urllib.error
import urllib.request

CONTRACT = {
    "id": "fraud-detection-v1.0",
    "version": "1.0.0",
    "description": "rule-based fraud risk score",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "user_id": {"type": "string", "minLength": 1},
            "ip_address": {"type": "string", "format": "ipv4"},
            "amount_cny": {"type": "number", "minimum": 0.01},
            "device_fingerprint": {"type": "string", "maxLength": 64},
        },
        "required": ["user_id", "ip_address", "amount_cny"],
    },
    "output_schema": {
        "type": "object",
        "properties": {
            "risk_score": {"type": "number", "minimum": 0, "maximum": 100},
            "risk_level": {"type": "string", "enum": ["low", "medium", "high"]},
            "rules_triggered": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["risk_score", "risk_level"],
    },
    "constraints": {"timeout_ms": 500, "region_support": ["cn-east-1"], "max_concurrent": 100},
}
REPORTS = None


def fetch(url, body=None, timeout=5):
    """GETs, or POSTs JSON; returns status and text."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data)
    if data is not None:
        request.add_header("Content-Type", "application/json")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def validate(schema, value):
    for name in schema["required"]:
        if name not in value:
            raise ValueError(f"'{name}' is a required property")
    for name, rule in schema["properties"].items():
        wanted = {"string": str, "number": (int, float), "array": list}[rule["type"]]
        if name in value and not isinstance(value[name], wanted):
            raise ValueError(f"'{name}' is not of type '{rule['type']}'")


def legacy_risk(input):
    """The business logic, as it was before."""
    if input["amount_cny"] > 1_000_000:
        raise ValueError("no single payment above 1000000")
    high = input["amount_cny"] > 50_000
    return {
        "risk_score": 85 if high else 12,
        "risk_level": "high" if high else "low",
        "rules_triggered": ["large_amount"] if high else [],
    }


def report(task_id, status, output_hash):
    if REPORTS:
        told = {"task_id": task_id, "status": status, "output_hash": output_hash}
        print("report", *fetch(REPORTS + "/report-status", told), flush=True)


class Agent(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/hermes/handshake":
            text = json.dumps(CONTRACT, sort_keys=True)
            signature = hashlib.sha256(text.encode()).hexdigest()[:16]
            self.reply(200, {**CONTRACT, "signature": signature})
        elif self.path == "/hermes/heartbeat":
            self.reply(200, {"status": "ready", "version": "1.0"})
        else:
            self.reply(404, {"error": "not found"})

    def do_POST(self):
        started = time.time()
        data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/hermes/invoke":
            return self.reply(404, {"error": "not found"})
        task_id = data.get("context", {}).get("task_id", "unknown")
        try:
            validate(CONTRACT["input_schema"], data["input"])
            result = legacy_risk(data["input"])
        except ValueError as error:
            report(task_id, "failed_validation", str(error))
            return self.reply(400, {"error": str(error)})
        digest = hashlib.md5(json.dumps(result, sort_keys=True).encode()).hexdigest()
        report(task_id, "success", digest)
        self.reply(200, result)
        print("invoke", task_id, f"{time.time() - started:.3f}", flush=True)

    def reply(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@functools.lru_cache(maxsize=128)
def handshake(base):
    status, text = fetch(base + "/hermes/handshake")
    if status != 200:
        raise SystemExit(f"no handshake: {status} {text}")
    return json.loads(text)


def call(consul, input, context):
    _, text = fetch(f"{consul}/v1/health/service/{CONTRACT['id']}?passing=true")
    instances = json.loads(text)
    if not instances:
        raise SystemExit("no passing instance")
    service = instances[0]["Service"]
    base = f"http://{service['Address']}:{service['Port']}"
    validate(handshake(base)["input_schema"], input)
    return fetch(base + "/hermes/invoke", {"input": input, "context": context})


def main(command, *arguments):
    global REPORTS
    if command == "serve":
        REPORTS = arguments[1] if len(arguments) > 1 else None
        address = ("127.0.0.1", int(arguments[0]))
        http.server.ThreadingHTTPServer(address, Agent).serve_forever()
    status, body = call(arguments[0], *map(json.loads, arguments[1:]))
    print(json.dumps({"status": status, "body": body}))


main(*sys.argv[1:])
