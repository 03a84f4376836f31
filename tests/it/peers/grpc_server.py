"""A gRPC service of the four kinds of method, on bytes: no code is generated.

Prints `port N` once it serves. Cancelled calls are told on a line of their own.
"""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc


def unary(request, context):
    sent = dict(context.invocation_metadata())
    context.set_trailing_metadata((("word-back", sent.get("word", "")), ("bytes-bin", request[:4])))
    return request


def refuse(request, context):
    context.set_trailing_metadata((("reason", "on purpose"),))
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not today: é")


def download(request, context):
    for index in range(int(request)):
        yield b"%d:" % index + b"x" * 1000


def upload(requests, context):
    digest, count = hashlib.sha256(), 0
    for request in requests:
        digest.update(request)
        count += 1
    return b"%d %s" % (count, digest.hexdigest().encode())


def chat(requests, context):
    for request in requests:
        yield b"heard " + request


def wait(request, context):
    gone = threading.Event()

    def left():
        print("a caller left", flush=True)
        gone.set()

    if context.add_callback(left):
        yield b"waiting"
        gone.wait(30)
    else:
        left()


METHODS = {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Refuse": grpc.unary_unary_rpc_method_handler(refuse),
    "Download": grpc.unary_stream_rpc_method_handler(download),
    "Upload": grpc.stream_unary_rpc_method_handler(upload),
    "Chat": grpc.stream_stream_rpc_method_handler(chat),
    "Wait": grpc.unary_stream_rpc_method_handler(wait),
}

if __name__ == "__main__":
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", METHODS),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"port {port}", flush=True)
    server.wait_for_termination()
