"""Requests that are given up, connections that say nothing, and processes that are killed."""

import random
import socket
import time
from contextlib import ExitStack, suppress

import psutil
import pytest

from rankscope.show.lab._server import REQUEST_SECONDS

SMALL = "/state.json?layers=1&tokens=3&width=2"
HEAVY = "/state.json?layers=64&tokens=48&width=128&heads=8&skip=1&mlp=4&norm=layer&part=second"


def connected(lab, sent=b""):
    connection = socket.create_connection(("127.0.0.1", lab.port), timeout=10)
    connection.sendall(sent)
    return connection


def asked(lab, path):
    """A request whose answer is not waited for."""
    return connected(lab, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())


def workers_of(lab):
    """The processes that compute, not the one they are forked from."""
    server = psutil.Process(lab.process.pid)
    return [child for forked in server.children() for child in forked.children()]


def seconds_until_answered(lab):
    began = time.monotonic()
    assert lab.get(f"{SMALL}&session=last").status == 200
    return time.monotonic() - began


@pytest.mark.parametrize(("count", "gap"), [(40, 0.03), (12, 0.005), (120, 0.005)])
def test_requests_that_are_given_up_cost_later_ones_nothing(lab, count, gap):
    """Each would take seconds; on an idle machine the next is answered after 0.1 seconds."""
    lab.get(SMALL)
    draws = random.Random(count)
    for at in range(count):
        connection = asked(lab, f"{HEAVY}&seed={at}&session=page{at}")
        time.sleep(gap * draws.uniform(0.5, 1.5))
        connection.close()
    assert seconds_until_answered(lab) < 3
    assert busy_seconds(lab, 1.0) < 0.3  # nothing is computed for those who have gone


def test_requests_that_are_given_up_all_at_once_leave_the_queue(lab):
    with ExitStack() as open_connections:
        for at in range(40):
            open_connections.enter_context(asked(lab, f"{HEAVY}&seed={at}"))
    assert seconds_until_answered(lab) < 3
    assert busy_seconds(lab, 1.0) < 0.3


def busy_seconds(lab, during):
    """How long the processes compute within some seconds in which nothing is asked."""

    def used():
        return {each.pid: sum(each.cpu_times()[:2]) for each in workers_of(lab)}

    before = used()
    time.sleep(during)
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in used().items())


def test_requests_that_do_not_arrive_hold_no_connection_for_long(lab):
    """Three hundred, more than are served at once: nothing, half a head, or a body said to come."""
    head = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{lab.port}\r\n".encode()
    starts = [b"", head, head + b"Content-Length: 999\r\n\r\n1"]
    with ExitStack() as open_connections:
        held = [open_connections.enter_context(connected(lab, starts[at % 3])) for at in range(300)]
        until = time.monotonic() + REQUEST_SECONDS + 10
        while lab.get("/lab.json").status != 200:
            assert time.monotonic() < until
            for connection in held[-6:]:  # bytes that trickle in win no more time
                with suppress(OSError):
                    connection.sendall(b"x")
            time.sleep(0.25)
        assert all(map(is_closed, held))


def is_closed(connection):
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_connections_that_are_kept_serve_many_requests(lab):
    """Slowly sent, but in time; and idle for longer than a request may take."""
    request = f"GET /icon.svg HTTP/1.1\r\nHost: 127.0.0.1:{lab.port}\r\n\r\n".encode()
    with connected(lab) as connection:
        for pause in (0.5, REQUEST_SECONDS + 1, 0.0):
            connection.sendall(request[:20])
            time.sleep(min(pause, 0.5))
            connection.sendall(request[20:])
            answered = b""
            while not answered.endswith(b"</svg>\n"):
                part = connection.recv(65536)
                assert part, "the connection was closed"
                answered += part
            assert answered.startswith(b"HTTP/1.1 200 ")
            time.sleep(pause)


def test_processes_killed_while_idle_are_replaced_before_anyone_notices(lab):
    lab.get(SMALL)
    for worker in workers_of(lab):
        worker.kill()
    assert [lab.get(f"{SMALL}&seed={seed}").status for seed in range(4)] == [200] * 4


def test_the_process_that_workers_are_forked_from_is_replaced_too(lab):
    lab.get(SMALL)
    server = psutil.Process(lab.process.pid)
    for child in server.children(recursive=True):
        child.kill()
    assert [lab.get(f"{SMALL}&seed={seed}").status for seed in range(4)] == [200] * 4
