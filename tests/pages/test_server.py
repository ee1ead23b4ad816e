"""The explorer's server: whatever a client sends gets a status and one line, in time, and nothing is printed."""

import http.client
import json
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfgrid.engine.errors import printable
from perfgrid.pictures.pages import server as served
from perfgrid.pictures.pages.explorer import Explorer
from perfgrid.pictures.pages.server import Server
from tests.fuzz.values import hostile, json_text, mutated

GOOD = {"quantity": "step_time", "axes": ["device"], "rows": {}, "by": "step_time"}
ROWS = {name: 0 for name in ("model", "device", "topology", "microbatch", "parallelism", "hbm_bandwidth")}
QUESTIONS = {
    "marks": GOOD | {"changed": {"sequence_length": 2.0}},
    "design": {"rows": ROWS},
    "explain": {"rows": ROWS, "quantity": "step_time"},
    "compare": {"a": ROWS, "b": ROWS | {"device": 1}},
    "study": GOOD | {"cells": False},
    "rest": {"version": "x"},
}
WIDE = [10**24, 2**31, 2**63, -1, 0.5, 1e300, True, None, "0", []]


@pytest.fixture
def quiet(capfd):
    """Nothing is printed, by no thread."""
    yield
    time.sleep(0.05)
    assert capfd.readouterr() == ("", "")


def asked(server, what, body):
    """The status and the answer to a question."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    text = body if isinstance(body, str | bytes) else json_text(body)
    connection.request("POST", f"/{server.token}/{what}", text, {"Content-Type": "application/json"})
    got = connection.getresponse()
    found = got.status, json.loads(got.read())
    connection.close()
    return found


def sent(server, data, wait=10.0):
    """What comes back for some bytes until the connection is closed."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=wait) as connection:
        connection.sendall(data)
        found = b""
        while part := connection.recv(2**16):
            found += part
    return found


def is_kept(connection):
    """Whether the server keeps a connection that asked nothing open; one that it closed is closed here, too."""
    try:
        assert connection.recv(1) == b""
    except TimeoutError:
        return True
    connection.close()
    return False


def refused(status, answer):
    """Whether an answer is one line that says what is wrong, without control characters."""
    assert 400 <= status < 500
    assert answer.keys() == {"error"}
    return answer["error"] and answer["error"] == printable(answer["error"])


@pytest.mark.parametrize("row", WIDE)
@pytest.mark.parametrize("what", ["marks", "design", "explain", "compare", "study"])
def test_rows_that_are_none(quiet, explorer, what, row):
    body = json.loads(json.dumps(QUESTIONS[what]))
    place = body["a"] if what == "compare" else body["rows"]
    place["device"] = [row] if what in ("marks", "study") else row
    assert refused(*asked(explorer, what, body)), (what, row)


@pytest.mark.parametrize("changed", [{"tp": 0.3, "x": 2}, {"sequence_length": 0}, {"x": 1e-9}, {"\x1b[31m": 2.0}, []])
@pytest.mark.parametrize("what", ["marks", "design", "explain", "compare", "study"])
def test_factors_that_are_none(quiet, explorer, what, changed):
    assert refused(*asked(explorer, what, QUESTIONS[what] | {"changed": changed}))


@pytest.mark.parametrize(
    "body",
    [
        *("", "[", "null", "[" * 100_000, '{"a":' * 100_000, "9" * 5000, '{"quantity": NaN}', b"\xff", b"{\x00}"),
        *('{"quantity": "a", "quantity": "b"}', '{"rows": {"' + "x" * 10**6 + '": [1]}}'),
    ],
)
def test_texts_that_are_no_question(quiet, explorer, body):
    for what in (*QUESTIONS, "pictures", "nothing"):
        assert refused(*asked(explorer, what, body))


SLOW = [
    HealthCheck.too_slow,
    HealthCheck.filter_too_much,
    HealthCheck.data_too_large,
    HealthCheck.function_scoped_fixture,
]


@settings(max_examples=60, suppress_health_check=SLOW, deadline=None)
@given(st.sampled_from(sorted(QUESTIONS)).flatmap(lambda n: st.tuples(st.just(n), mutated(QUESTIONS[n]) | hostile)))
def test_questions_of_strangers(explorer, drawn):
    status, answer = asked(explorer, *drawn)
    assert status == 200 or refused(status, answer)


def requests(server):
    """Requests that are none of HTTP, or beyond the limits, by the status that they get."""
    post = f"POST /{server.token}/marks HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n".encode()
    typed = post + b"Content-Type: application/json\r\n"
    return {
        b"400": [
            typed + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
            typed + b"Content-Length: -5\r\n\r\n",
            typed + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
            typed + "Content-Length: \xb2\r\n\r\n".encode("latin-1"),
            typed + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            typed + b"\r\n",
            post + b"Content-Type: ;;==\r\nContent-Length: 2\r\n\r\n{}",
            typed + b"Content-Length: 2000000\r\n\r\n" + b" " * 2_000_000,
            b"\x00\x01\x02\r\n\r\n",
            b"GET / HTTP/9.9.9\r\n\r\n",
        ],
        b"403": [b"GET / HTTP/1.1\r\n\r\n", b"GET /\r\n\r\n", "GET /\xe9/ HTTP/1.1\r\n\r\n".encode("latin-1")],
        b"414": [b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"],
        b"431": [
            b"GET / HTTP/1.1\r\n" + b"".join(b"a%d: b\r\n" % i for i in range(300)) + b"\r\n",
            b"GET / HTTP/1.1\r\na: " + b"b" * 70_000 + b"\r\n\r\n",
        ],
        b"501": [b"PUT / HTTP/1.1\r\n\r\n", b"HEAD / HTTP/1.1\r\n\r\n", b"\x1b[31m / HTTP/1.1\r\n\r\n"],
    }


def test_requests_that_are_none(quiet, explorer):
    for status, all_of_them in requests(explorer).items():
        for request in all_of_them:
            got = sent(explorer, request)
            assert got.startswith((b"HTTP/1.1 " + status, b"HTTP/1.0 " + status)), (request[:80], got[:80])
            body = got.partition(b"\r\n\r\n")[2]
            assert request.startswith(b"HEAD") == (not body)
            assert not body or refused(400, json.loads(body))
    assert asked(explorer, "marks", GOOD)[0] == 200


def test_clients_that_go_away(quiet, explorer):
    """Resets before, within and behind a request; the next client is answered."""
    host = f"Host: 127.0.0.1:{explorer.server_port}\r\n".encode()
    starts = (
        b"",
        b"GET /" + explorer.token.encode() + b"/ HTTP/1.1\r\n" + host + b"\r\n",
        b"POST /" + explorer.token.encode() + b"/marks HTTP/1.1\r\n" + host + b"Content-Type: application/json\r\n"
        b"Content-Length: 50\r\n\r\n{",
        b"GET /",
    )
    for data in starts * 5:
        connection = socket.create_connection(("127.0.0.1", explorer.server_port))
        connection.sendall(data)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    assert asked(explorer, "marks", GOOD)[0] == 200


def test_many_clients_at_once(quiet, explorer):
    """A page for each of 200 that ask together."""
    together = threading.Barrier(200)

    def page(_):
        connection = http.client.HTTPConnection("127.0.0.1", explorer.server_port, timeout=120)
        together.wait()
        connection.request("GET", f"/{explorer.token}/")
        got = connection.getresponse()
        found = got.status, got.read().endswith(b"</html>\n")
        connection.close()
        return found

    with ThreadPoolExecutor(200) as pool:
        assert list(pool.map(page, range(200))) == [(200, True)] * 200


def test_slow_clients(quiet, result, monkeypatch):
    """A request that has begun must arrive; more connections than threads are closed; others are answered meanwhile."""
    monkeypatch.setattr(served, "SLOWEST", 0.3)
    monkeypatch.setattr(served, "MOST_CONNECTIONS", 4)
    with Server() as server:
        server.explorer.set_result(Explorer(result.copy(), "small.nc"))
        for begun in (b"GET /", b"POST / HTTP/1.1\r\nContent-", b"\x16\x03\x01\x02\x00"):
            assert sent(server, begun).partition(b" ")[2].startswith(b"408 ")
        post = f"POST /{server.token}/marks HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n".encode()
        got = sent(server, post + b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{")
        assert got.partition(b" ")[2].startswith(b"408 ")
        idle = []
        while len(idle) < 4:  # a thread of a request above may still be ending: its place is free a little later
            if is_kept(connection := socket.create_connection(("127.0.0.1", server.server_port), timeout=0.5)):
                idle.append(connection)
        surplus = socket.create_connection(("127.0.0.1", server.server_port), timeout=10)
        assert not is_kept(surplus)
        for connection in idle:
            connection.close()
        while not is_kept(connection := socket.create_connection(("127.0.0.1", server.server_port), timeout=0.5)):
            pass
        monkeypatch.setattr(served, "SLOWEST", 30.0)
        assert asked(server, "marks", GOOD)[0] == 200


def test_a_bug_is_one_line(quiet, explorer, monkeypatch):
    monkeypatch.setattr(explorer.explorer.result(), "answer", lambda *_: 1 / 0)
    status, answer = asked(explorer, "marks", GOOD)
    assert (status, answer) == (500, {"error": "an error of perfgrid: ZeroDivisionError: division by zero"})
