"""A model is left as it was, whatever interrupts a trace of it, and wherever that strikes."""

import re
import signal
import subprocess
import sys
import threading

import pytest

from . import interruptions

pytest.importorskip("transformers")

# Python drops, with a warning, what is raised where an object is freed.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def campaign():
    before = signal.getsignal(signal.SIGALRM) if interruptions.HAS_TIMER else None
    yield interruptions.Campaign(seed=0)
    if before is not None:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", interruptions.KINDS)
def test_nothing_is_left_behind(kind):
    """Of 5,000 and more: ``python tests/core/tracing/interruptions.py --count 5000``.

    In a process of its own, because a signal that comes late may strike in pytest's code.
    """
    run = subprocess.run(
        [sys.executable, interruptions.__file__, "--count", "80", "--kinds", kind],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "nothing was left behind" in run.stdout
    interrupted = re.search(rf"\('{kind}', 'interrupted'\): (\d+)", run.stdout)
    assert interrupted is not None
    assert int(interrupted[1]) > 40


def test_nothing_is_left_behind_where_another_thread_traces_too(campaign):
    """Each has figures of its own, and the last to leave puts the modes back."""
    case = campaign.cases[-1]
    ended, wrong, interrupted = threading.Event(), [], 0

    def trace_on():
        while not ended.is_set():
            columns = interruptions.trace(case.model, case.x, metrics=case.metrics).columns
            wrong.extend([columns["value"]] * (columns["value"] != case.values))

    other = threading.Thread(target=trace_on, daemon=True)
    other.start()
    try:
        for _ in range(20):
            campaign.injection(case)
            try:
                case.run()
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        ended.set()
        other.join(60)
    assert not other.is_alive()
    assert interrupted > 10
    assert not wrong
    assert not campaign.later(case)
    assert interruptions.records() == campaign.records
