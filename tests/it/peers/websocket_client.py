"""Speaks with websocket_server.py at URL and tells how that went.

    websocket_client.py URL FRAMES
"""

import asyncio
import json
import sys

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed


async def main(url, frames):
    async with connect(url, max_size=4 << 20, compression=None, proxy=None) as connection:
        told = {"in_turn": await in_turn(connection), "frames": await many(connection, frames)}
        large = bytes(range(256)) * 8192
        await connection.send(large)
        told["large"] = await connection.recv() == large
        await (await connection.ping())
        told["ponged"] = True
        await connection.send("end")
        try:
            await connection.recv()
        except ConnectionClosed as closed:
            told["closed"] = {"code": closed.rcvd.code, "reason": closed.rcvd.reason}
    print(json.dumps(told))


async def in_turn(connection):
    """Sends a word only after the one before came back: nothing may be held back on the way."""
    for index in range(100):
        await connection.send(f"word {index}")
        if await connection.recv() != f"word {index}":
            return False
    return True


async def many(connection, frames):
    """Sends without waiting, text and bytes in turn, and counts what comes back as it was sent."""

    def frame(index):
        return f"frame {index}" if index % 2 else b"frame %d" % index

    async def send():
        for index in range(frames):
            await connection.send(frame(index))

    sending = asyncio.create_task(send())
    came = 0
    for index in range(frames):
        came += await connection.recv() == frame(index)
    await sending
    return came


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(main(sys.argv[1], int(sys.argv[2])), 60))
