"""A WebSocket echo at /echo; prints `port N` once it serves. GET /healthz says that it is well."""

import asyncio
import http

from websockets.asyncio.server import serve


async def echo(connection):
    async for message in connection:
        if message == "end":
            await connection.close(4000, "as asked")
        else:
            await connection.send(message)


def answer_health(connection, request):
    if request.path == "/healthz":
        return connection.respond(http.HTTPStatus.OK, "well\n")
    return None


async def main():
    options = {"max_size": 4 << 20, "process_request": answer_health, "compression": None}
    async with serve(echo, "127.0.0.1", 0, **options) as server:
        print(f"port {server.sockets[0].getsockname()[1]}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
