"""Calls each method of grpc_server.py at TARGET under the name AUTHORITY, and tells what came back.

    grpc_client.py TARGET AUTHORITY
"""

import hashlib
import json
import queue
import sys

import grpc

LIMITS = [("grpc.max_send_message_length", 8 << 20), ("grpc.max_receive_message_length", 8 << 20)]
WITHIN = 20


def main(target, authority):
    options = [*LIMITS, ("grpc.default_authority", authority), ("grpc.enable_http_proxy", 0)]
    told = {}
    with grpc.insecure_channel(target, options) as channel:
        told["unary"] = unary(channel.unary_unary("/test.Echo/Unary"))
        told["refused"] = refused(channel.unary_unary("/test.Echo/Refuse"))
        told["unknown"] = refused(channel.unary_unary("/test.Echo/Nothing"))
        told["download"] = download(channel.unary_stream("/test.Echo/Download"))
        told["upload"] = upload(channel.stream_unary("/test.Echo/Upload"))
        told["chat"] = chat(channel.stream_stream("/test.Echo/Chat"))
        told["late"] = late(channel.unary_stream("/test.Echo/Wait"))
        told["left"] = leave(channel.unary_stream("/test.Echo/Wait"))
    print(json.dumps(told))


def unary(method):
    # Larger than a window, so that it takes window updates both ways.
    request = bytes(range(256)) * 4096
    reply, call = method.with_call(request, metadata=(("word", "hello"),), timeout=WITHIN)
    trailers = dict(call.trailing_metadata())
    return {
        "same": reply == request,
        "word_back": trailers["word-back"],
        "bytes": list(trailers["bytes-bin"]),
    }


def refused(method):
    try:
        method(b"please", timeout=WITHIN)
    except grpc.RpcError as error:
        trailers = dict(error.trailing_metadata() or ())
        return {"code": error.code().name, "details": error.details(), "reason": trailers.get("reason")}
    return None


def download(method):
    pieces = list(method(b"2000", timeout=WITHIN))
    in_order = all(piece.startswith(b"%d:" % index) for index, piece in enumerate(pieces))
    return {"count": len(pieces), "in_order": in_order}


def upload(method):
    pieces = [b"%d:" % index + b"y" * 1000 for index in range(2000)]
    reply = method(iter(pieces), timeout=WITHIN).decode()
    return {"same": reply == f"2000 {hashlib.sha256(b''.join(pieces)).hexdigest()}"}


def chat(method):
    """Says a word only after the one before was heard: nothing may be held back on the way."""
    words = queue.Queue()
    heard = method(iter(words.get, None), timeout=WITHIN)
    said = [b"word %d" % index for index in range(100)]
    answers = []
    for word in said:
        words.put(word)
        answers.append(next(heard))
    words.put(None)
    return {"in_turn": answers == [b"heard " + word for word in said], "ended": list(heard) == []}


def late(method):
    stream = method(b"", timeout=1)
    first = next(stream)
    try:
        next(stream)
    except grpc.RpcError as error:
        return {"first": first.decode(), "code": error.code().name}
    return None


def leave(method):
    stream = method(b"", timeout=WITHIN)
    first = next(stream)
    stream.cancel()
    return {"first": first.decode()}


if __name__ == "__main__":
    main(*sys.argv[1:])
