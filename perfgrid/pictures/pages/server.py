"""The explorer's server: the page and its questions, on this machine only, for whoever knows a random address.

Whatever a client sends is answered with a status and one line, or its connection is closed; nothing is printed.
"""

from __future__ import annotations

import io
import json
import secrets
import socket
import threading
import time
from concurrent.futures import Future
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from perfgrid.engine.errors import PerfgridError, one_line, shortened

from .page import page, plain_data, policy

if TYPE_CHECKING:  # what takes longest to import: the server may start before it
    from .explorer import Explorer

LOOPBACK = "127.0.0.1"
MOST_BYTES = 2**20  # of a question
MOST_CONNECTIONS = 512  # at once: each has a thread
IDLE, SLOWEST, UNREAD = 600.0, 30.0, 60.0  # seconds: between questions, for one to arrive, for a reply to be taken
LONGEST = 300  # characters of what is wrong with a request
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{policy(True)}; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Server(ThreadingHTTPServer):
    """Serves one explorer at ``address`` from a thread of its own, until it is left; a port of 0 is any free one.

    ``known``: what the page showed when the same was explored before. It is served at once; questions wait until
    `explorer` is set.
    """

    daemon_threads = True
    request_queue_size = 2 * MOST_CONNECTIONS  # a browser with many windows connects faster than threads start

    def __init__(self, port: int = 0, known: dict[str, Any] | None = None):
        self.known, self.token = known, secrets.token_urlsafe(24)
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.explorer: Future[Explorer] = Future()
        super().__init__((LOOPBACK, port), Handler)
        self.hosts = {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}

    def __enter__(self) -> Server:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for a connection; one connection too many is closed."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One connection, in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing is printed of a client that went away."""

    def page(self) -> str:
        """The page."""
        known = self.known if self.known and not self.explorer.done() else self.explorer.result().opening()
        return page(known, live=True)

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"


class TooSlow(Exception):
    """A request that began and did not arrive."""


class Incoming(io.RawIOBase):
    """What a client sends. Between requests it may take its time; one that has begun must arrive soon."""

    def __init__(self, connection: socket.socket):
        self.connection, self.due = connection, 0.0

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """What has arrived. TimeoutError for a client that sends nothing, TooSlow for one that does not end."""
        left = self.due - time.monotonic() if self.due else IDLE
        self.connection.settimeout(max(left, 1e-3))
        try:
            found = self.connection.recv_into(buffer)
        except TimeoutError:
            if self.due:
                raise TooSlow from None
            raise
        self.due = self.due or time.monotonic() + SLOWEST
        return found


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body leave together
    server_version, sys_version = "perfgrid", ""

    def setup(self) -> None:
        """Read with limits on time."""
        super().setup()
        self.incoming = Incoming(self.connection)
        self.rfile = io.BufferedReader(self.incoming)

    def handle_one_request(self) -> None:
        """One request, answered whatever it is."""
        self.incoming.due, self.command, self.requestline = 0.0, "", ""
        try:
            super().handle_one_request()
        except TooSlow:
            self._refuse(408, f"the request did not arrive within {SLOWEST:g} s")
        except OSError:  # the client went away
            self.close_connection = True
        except Exception as error:
            self._refuse(500, f"an error of perfgrid: {type(error).__name__}: {error}")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """One line about a request that is none of HTTP."""
        self._refuse(int(code), message or self.responses.get(code, ("refused",))[0])

    def do_GET(self) -> None:
        """The page."""
        if (path := self._allowed()) == "":
            self._send(200, self.server.page().encode(), "text/html; charset=utf-8")
        elif path is not None:
            self._refuse(404, "there is no such page")

    def do_POST(self) -> None:
        """A question of the page."""
        if (what := self._allowed()) is None:
            return
        sizes = self.headers.get_all("Content-Length", [])
        stated = len(sizes) == 1 and sizes[0].isascii() and sizes[0].isdecimal() and len(sizes[0]) < 10
        size = int(sizes[0]) if stated else MOST_BYTES + 1
        if self.headers.get_content_type() != "application/json" or size > MOST_BYTES:
            return self._refuse(400, "a question is a JSON object of at most 1 MiB")
        text = self.rfile.read(size)
        if len(text) < size:  # the client went away
            return self._refuse(400, "the question ends early")
        try:
            self._json(200, self.server.explorer.result().answer(what, text))
        except PerfgridError as error:
            self._json(400, {"error": str(error)})
        except MemoryError:
            self._json(400, {"error": "not enough memory for this question"})

    def _allowed(self) -> str | None:
        """The path behind the token; a stranger is refused: another host name, origin or token."""
        origin = self.headers.get("Origin")
        host = self.headers.get("Host", "")
        if host not in self.server.hosts or origin not in (None, *(f"http://{name}" for name in self.server.hosts)):
            return self._refuse(403, "this server answers its own page only")
        token, slash, path = self.path.removeprefix("/").partition("/")
        if not slash or not compare_digest(token.encode(), self.server.token.encode()):
            return self._refuse(403, "the address lacks its token")
        return path

    def _refuse(self, status: int, why: str) -> None:
        """Answer with one line and close the connection, once the client had time to read it."""
        self.close_connection = True
        if getattr(self, "request_version", "HTTP/0.9") == "HTTP/0.9":  # which has no status
            self.request_version = "HTTP/1.0"
        try:
            self._json(status, {"error": shortened(one_line(why), LONGEST)})
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(1)
            for _ in range(2 * MOST_BYTES // io.DEFAULT_BUFFER_SIZE):  # unread, it would reset what was sent
                if not self.connection.recv(io.DEFAULT_BUFFER_SIZE):
                    break
        except OSError:
            return

    def _json(self, status: int, found: Any) -> None:
        self._send(status, json.dumps(plain_data(found), separators=(",", ":")).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in (HEADERS | {"Content-Type": kind, "Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.connection.settimeout(UNREAD)
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed for a request."""
