"""OpenMP's threads wait passively in every process we start, unless the user says otherwise."""

import subprocess
import sys

import pytest

from rankscope.process.pool import Worker
from rankscope.process.threads import passive_wait

STARTED = """
import os, sys
import rankscope
assert "torch" not in sys.modules
before = os.environ.get("OMP_WAIT_POLICY")
from rankscope.__main__ import main
assert os.environ.get("OMP_WAIT_POLICY") == before, "importing sets nothing"
class Seen:
    def find_spec(self, name, *_):
        if name == "torch":
            print(os.environ.get("OMP_WAIT_POLICY"), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Seen())
sys.argv = ["rankscope", "trace", "--layers", "1"]
main()
"""


@pytest.mark.parametrize(("said", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_the_policy_is_set_before_torch_is_imported(said, expected, monkeypatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", said)
    spins = {} if said else {"GOMP_SPINCOUNT": "3000"}
    assert passive_wait() == {"OMP_WAIT_POLICY": expected, **spins}
    worker = Worker("os:getenvb", threads=2)
    answers = [worker.ask(name) for name in (b"OMP_WAIT_POLICY", b"OMP_NUM_THREADS")]
    worker.close()
    assert answers == [expected.encode(), b"2"]
    ran = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == (f"{expected}\n", "")
