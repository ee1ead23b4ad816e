"""The explorer's server: the page and its questions, on this machine only, for whoever knows a random address."""

from __future__ import annotations

import json
import secrets
import threading
from concurrent.futures import Future
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from perfgrid.engine.errors import PerfgridError

from .page import finite, page, policy

if TYPE_CHECKING:  # what takes longest to import: the server may start before it
    from .explorer import Explorer

LOOPBACK = "127.0.0.1"
MOST_BYTES = 2**20  # of a question
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

    def __init__(self, port: int = 0, known: dict[str, Any] | None = None):
        self.known, self.token = known, secrets.token_urlsafe(24)
        self.explorer: Future[Explorer] = Future()
        super().__init__((LOOPBACK, port), Handler)
        self.hosts = {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}

    def __enter__(self) -> Server:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.shutdown()
        self.server_close()

    def page(self) -> str:
        """The page."""
        known = self.known if self.known and not self.explorer.done() else self.explorer.result().opening()
        return page(known, live=True)

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 600
    wbufsize = -1  # headers and body leave together
    server_version, sys_version = "perfgrid", ""

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
        size = self.headers.get("Content-Length", "")
        if self.headers.get_content_type() != "application/json" or not size.isdecimal() or int(size) > MOST_BYTES:
            return self._refuse(400, "a question is a JSON object of at most 1 MiB")
        text = self.rfile.read(int(size))
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
        self.close_connection = True
        self._json(status, {"error": why})

    def _json(self, status: int, found: Any) -> None:
        self._send(status, json.dumps(finite(found), separators=(",", ":")).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in (HEADERS | {"Content-Type": kind, "Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed for a request."""
