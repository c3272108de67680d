"""Who may ask: names of this machine, and pages of this server."""

import pytest

from rankscope.show.lab._server import CONTENT_POLICY, host_rule, name_of


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1:8417", "127.0.0.1"),
        ("LocalHost", "localhost"),
        ("[::1]:8417", "::1"),
        ("[::1]", "::1"),
        ("evil.example:80", "evil.example"),
        ("localhost:evil.example", ""),
        ("[127.0.0.1]evil.example", ""),
        ("[::1%25evil.example]", ""),
        ("user@localhost", ""),
        ("", ""),
    ],
)
def test_a_host_is_read_without_its_port(host, name):
    assert name_of(host) == name


@pytest.mark.parametrize(
    ("bound", "ours", "foreign"),
    [
        ("127.0.0.1", ["127.0.0.1", "localhost", "::1"], ["evil.example", "192.168.1.5", ""]),
        ("192.168.1.5", ["192.168.1.5", "localhost"], ["evil.example", "192.168.1.6"]),
        ("0.0.0.0", ["192.168.1.5", "10.0.0.1", "localhost"], ["evil.example", "127.0.0.1.nip.io"]),
        ("lab.internal", ["lab.internal", "127.0.0.1"], ["evil.internal", "10.0.0.1"]),
    ],
)
def test_names_that_can_be_made_to_lead_here_are_foreign(bound, ours, foreign):
    is_ours = host_rule(bound)
    assert all(map(is_ours, ours))
    assert not any(map(is_ours, foreign))


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ({}, "/state.json", 200),
        ({"Host": "localhost"}, "/", 200),
        ({"Host": "evil.example"}, "/", 421),
        ({"Host": "evil.example:8417"}, "/state.json", 421),
        ({"Host": ["127.0.0.1", "evil.example"]}, "/", 400),
        ({"Host": []}, "/", 400),
        ({"Origin": "http://evil.example"}, "/state.json", 403),
        ({"Host": "localhost:evil.example"}, "/", 421),
        ({"Origin": "null"}, "/lab.json", 403),
        ({"Origin": "https://127.0.0.1"}, "/lab.json", 403),
        ({"Host": "127.0.0.1", "Origin": "http://127.0.0.1"}, "/lab.json", 200),
        ({"Host": "127.0.0.1", "Origin": "http://127.0.0.1:81"}, "/lab.json", 403),
        ({"Sec-Fetch-Site": "same-origin"}, "/lab.json", 200),
        ({"Sec-Fetch-Site": "cross-site"}, "/lab.json", 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, "/figure.svg", 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, "/", 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, "/state.json", 403),
        ({"Content-Length": "4"}, "/", 413),
        ({"Transfer-Encoding": "chunked"}, "/state.json", 413),
    ],
)
def test_requests_from_elsewhere_are_refused(lab, headers, path, status):
    body = b"0\r\n\r\n" if "Transfer-Encoding" in headers else None
    body = b"abcd" if "Content-Length" in headers else body
    assert lab.get(path, headers=headers, body=body).status == status


@pytest.mark.parametrize("path", ["/", "/state.json?layers=x", "/nowhere", "/vega.js"])
def test_every_answer_carries_the_headers_of_safety(lab, path):
    headers = lab.get(path).headers
    assert headers["content-security-policy"] == CONTENT_POLICY
    assert "unsafe" not in CONTENT_POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers


def test_other_methods_are_refused(lab):
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert lab.get("/state.json", method=method).status == 405


def test_an_address_that_is_too_long_is_refused(lab):
    assert lab.get("/state.json?seed=" + "1" * 5000).status == 422
    assert lab.get("/state.json?seed=" + "1" * 70_000).status in (400, 422)
