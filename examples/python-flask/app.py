"""Takes payment orders: Flask, JSON over HTTP.

SCREENING_URL, where it is set, says where an order goes next. PORT chooses the port.
"""

import json
import os
import urllib.error
import urllib.request

from flask import Flask, request

# What W3C Trace Context has every service hand on; nothing of the sidecar is known here.
CORRELATION = ("traceparent", "tracestate")
SCREENING_URL = os.environ.get("SCREENING_URL")

app = Flask(__name__)


@app.post("/orders")
def take():
    order = request.get_json()
    if order["debtor"] == order["creditor"]:
        return {"error": "nobody pays themselves across a border"}, 422
    if not SCREENING_URL:
        return {"order_id": order["order_id"], "status": "received"}
    try:
        screening = screen(order)
    except (urllib.error.URLError, TimeoutError) as problem:
        app.logger.warning("order %s not screened: %s", order["order_id"], problem)
        return {"error": "screening is not available"}, 502
    if screening["risk"] == "high":
        status = "held"
    else:
        status = "settled" if "conversion" in screening else "cleared"
    return {"order_id": order["order_id"], "status": status, "screening": screening}


def screen(order):
    body = {
        "order_id": order["order_id"],
        "text": f'{order["debtor"]} pays {order["creditor"]}: {order["remittance"]}',
        "amount": order["amount"],
        "currency": order["currency"],
        "target_currency": order["target_currency"],
    }
    headers = {name: request.headers[name] for name in CORRELATION if name in request.headers}
    call = urllib.request.Request(
        SCREENING_URL,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **headers},
    )
    with urllib.request.urlopen(call, timeout=10) as reply:
        return json.load(reply)


if __name__ == "__main__":
    app.run(port=int(os.environ.get("PORT", "5000")))
