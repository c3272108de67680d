"""``rankscope lab`` and what it says where it cannot run."""

import builtins
import socket
import sys

import pytest


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_a_missing_extra_is_named(refuses, monkeypatch, missing):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **more)

    for name in [n for n in sys.modules if n.startswith(("rankscope.show.lab", missing))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install 'rankscope[lab]'" in refuses("lab", "--no-browser")


def test_a_port_that_is_taken_is_told(refuses):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "choose another --host or --port" in refuses("lab", "--no-browser", "--port", port)
    assert "expected 0 to 65535" in refuses("lab", "--no-browser", "--port", "70000")
    assert "cannot listen" in refuses("lab", "--no-browser", "--host", "no.such.host.invalid")
