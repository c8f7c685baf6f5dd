"""An HTTP client for load tests, on asyncio streams. It can also deviate from normal behaviour: disconnect, read slowly,
or close its sending side."""
import asyncio
import dataclasses
import json
import socket
import struct

ANSWER_SECONDS = 120  # timeout of a complete response; for a slow reader, of the next bytes
SLOW_BYTES, SLOW_SECONDS = 512, 0.005  # a slow reader reads this many bytes at a time and then pauses this long
SLOW_BUFFER = 4096


class Lost(Exception):
    """A request got no complete response, or a wrong one."""


class HungUp(Exception):
    """The client ended the request on purpose."""


@dataclasses.dataclass
class Manner:
    """Deviations from the behaviour of a normal client."""
    hang_up_after: int | None = None  # number of events before it disconnects; 0: after sending the request
    reset: bool = False  # disconnects with RST instead of FIN
    slow: bool = False
    half_close: bool = False  # closes its sending side after the request


@dataclasses.dataclass
class Answer:
    status: int
    headers: dict
    body: bytes

    def json(self):
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise Lost(f"the response is not JSON: {self.body[:200]!r}") from error

    def events(self):
        """The JSON value of each event of a stream. The stream must end with [DONE]."""
        lines = [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        if not lines or lines[-1] != b"[DONE]":
            raise Lost(f"the stream ended without [DONE]: {self.body[-200:]!r}")
        return [json.loads(line) for line in lines[:-1]]


class Connection:
    """One connection, for one request after another."""

    def __init__(self, reader, writer, slow):
        self.reader, self.writer, self.slow = reader, writer, slow
        self.deadline = None  # for a slow reader: an asyncio.Timeout, extended by each read

    @classmethod
    async def open(cls, address, slow=False):
        sock = socket.socket()
        sock.setblocking(False)
        if slow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER)
        try:
            await asyncio.get_running_loop().sock_connect(sock, address)
            reader, writer = await asyncio.open_connection(sock=sock, limit=SLOW_BUFFER if slow else 1 << 16)
        except OSError:
            sock.close()
            raise
        return cls(reader, writer, slow)

    def close(self, reset=False):
        sock = self.writer.get_extra_info("socket")
        if reset and sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.close()

    async def read(self, size):
        if not self.slow:
            return await self.reader.readexactly(size)
        parts, missing = [], size
        while missing:
            part = await self.reader.read(min(missing, SLOW_BYTES))
            if not part:
                raise asyncio.IncompleteReadError(b"".join(parts), size)
            parts.append(part)
            missing -= len(part)
            if self.deadline:
                self.deadline.reschedule(asyncio.get_running_loop().time() + ANSWER_SECONDS)
            await asyncio.sleep(SLOW_SECONDS)
        return b"".join(parts)

    async def answer(self, on_events=None):
        """Reads the next response. Calls `on_events(number of events so far)` for each chunk of a stream."""
        status = 100
        while status < 200:  # interim responses are skipped
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(lines[0].split()[1])
        fields = (line.partition(":") for line in lines[1:] if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        if headers.get("transfer-encoding") != "chunked":
            return Answer(status, headers, await self.read(int(headers.get("content-length", 0))))
        body, events = bytearray(), 0
        while True:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            chunk = await self.read(size + 2)
            if size == 0:
                return Answer(status, headers, bytes(body))
            body += chunk[:-2]
            events += chunk.count(b"data: ")
            if on_events:
                await on_events(events)

    async def send(self, request, may_refuse=False):
        """`may_refuse`: the server may respond and close the connection before it has received the whole request."""
        self.writer.write(request)
        try:
            await self.writer.drain()
        except OSError:
            if not may_refuse:
                raise


def encode(method, path, body=b"", headers=()):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: a", *headers]
    if data or method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


async def exchange(address, request, manner=Manner(), may_refuse=False, on_events=None):
    """Sends the bytes of one request on a new connection and returns its Answer. Raises Lost or HungUp."""
    connection = None

    async def watch(events):
        if manner.hang_up_after is not None and events >= manner.hang_up_after:
            raise HungUp
        if on_events:
            await on_events(events)

    try:
        async with asyncio.timeout(ANSWER_SECONDS) as deadline:
            connection = await Connection.open(address, manner.slow)
            if manner.slow:
                connection.deadline = deadline
            await connection.send(request, may_refuse)
            if manner.hang_up_after == 0:
                raise HungUp
            if manner.half_close:
                connection.writer.write_eof()
            return await connection.answer(watch)
    except TimeoutError:
        raise Lost(f"no complete response within {ANSWER_SECONDS} s") from None
    except asyncio.IncompleteReadError as error:
        raise Lost(f"connection closed after {len(error.partial)} bytes of a part of the response") from None
    except OSError as error:
        raise Lost(f"connection: {error}") from None
    finally:
        if connection is not None:
            connection.close(manner.reset)
