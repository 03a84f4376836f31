"""An agent written by hand: three endpoints around the existing risk check.

PORT              where it listens (5000)
CONSUL_HTTP_ADDR  the Consul agent it registers itself with; none: somebody else does that for it
REPORT_URL        who is told how each call ended; none: only the log
"""

import atexit
import hashlib
import json
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path

from flask import Flask, request
from jsonschema import Draft202012Validator

from risk import assess

PORT = int(os.environ.get("PORT", "5000"))
CONSUL = os.environ.get("CONSUL_HTTP_ADDR", "").rstrip("/")
REPORT_URL = os.environ.get("REPORT_URL")

CONTRACT = json.loads(Path(__file__).with_name("fraud-detection.json").read_text())
AGENT = CONTRACT["id"]
INPUT = Draft202012Validator(
    CONTRACT["input_schema"], format_checker=Draft202012Validator.FORMAT_CHECKER
)

app = Flask(__name__)


@app.get("/hermes/handshake")
def handshake():
    """The contract, with a short checksum of it. That proves nothing; a signature needs a key."""
    text = json.dumps(CONTRACT, sort_keys=True)
    return {**CONTRACT, "signature": hashlib.sha256(text.encode()).hexdigest()[:16]}


@app.get("/hermes/heartbeat")
def heartbeat():
    return {"status": "ready", "version": "1.0"}


@app.post("/hermes/invoke")
def invoke():
    call = request.get_json()
    context = call.get("context") or {}
    status, result, began = "failed_execution", None, time.monotonic()
    try:
        broken = next(INPUT.iter_errors(call.get("input")), None)
        if broken:
            status = "failed_validation"
            place = "/".join(map(str, broken.path)) or "input"
            return {"error": f"{place} breaks the contract ({broken.validator})"}, 400
        result = assess(call["input"])
        status = "completed"
        return result
    finally:
        # Whatever happened: a call whose end nobody reports looks busy for ever.
        report(context, status, result)
        seconds = time.monotonic() - began
        print(f"{context.get('task_id', 'unknown')} {status} after {seconds:.3f} s", flush=True)


def report(context, status, result):
    told = {"task_id": context.get("task_id", "unknown"), "status": status, "agent": AGENT}
    told |= {name: context[name] for name in ("step_id", "call_id", "attempt") if name in context}
    if result is not None:
        told["output_hash"] = hashlib.md5(json.dumps(result).encode()).hexdigest()
    if REPORT_URL:
        try:
            send("POST", REPORT_URL, told)
        except OSError as problem:
            print(f"report of {told['task_id']} not delivered: {problem}", flush=True)


def register():
    """Enters this instance and the contract's version in Consul, and takes the instance out at the end."""
    service = {
        "ID": f"{AGENT}-01",
        "Name": AGENT,
        "Address": "127.0.0.1",
        "Port": PORT,
        "Check": {
            "HTTP": f"http://127.0.0.1:{PORT}/hermes/heartbeat",
            "Interval": "10s",
            "Timeout": "5s",
        },
    }
    send("PUT", f"{CONSUL}/v1/agent/service/register", service)
    send("PUT", f"{CONSUL}/v1/kv/hermes/contracts/{AGENT}/version", CONTRACT["version"], is_text=True)
    atexit.register(send, "PUT", f"{CONSUL}/v1/agent/service/deregister/{service['ID']}", None)


def send(method, url, body, is_text=False):
    data = body.encode() if is_text else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(url, data, headers, method=method), timeout=2
    ) as reply:
        reply.read()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if CONSUL:
        register()
    app.run(port=PORT)
