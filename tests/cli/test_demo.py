"""The demo: one weight is broken, a diagnosis names it, and its repair restores the figures."""

import torch

from rankscope.cli.demo import FACTOR, FAULT, demo_pair
from rankscope.experiments.diagnosis import examine


def test_the_fault_is_found_named_and_mended():
    broken, healthy = demo_pair()
    assert torch.equal(broken.x, healthy.x)
    theirs, ours = (dict(pair.network.named_parameters()) for pair in (broken, healthy))
    changed = [name for name, weight in theirs.items() if not torch.equal(weight, ours[name])]
    assert changed == ["blocks.3.norms.mlp.weight"]
    assert torch.equal(theirs[changed[0]], ours[changed[0]] * FACTOR)
    mended = examine(broken)
    assert any(finding.fate == "collapse" for finding in mended.findings)
    assert FAULT in mended.causes[0].paths
    for findings in (mended.remaining, examine(healthy).findings):
        assert not any(finding.fate in ("collapse", "slow") for finding in findings)
