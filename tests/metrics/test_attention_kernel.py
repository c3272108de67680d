"""The Triton kernel gives what the chunked path gives, which is tested against the formulas."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from rankscope.metrics import AttentionScores
from rankscope.metrics._attention_summary import fused_here

SCRIPT = Path(__file__).with_name("attention_kernel_interpreted.py")


def test_the_kernel_agrees_with_the_chunked_path() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", str(SCRIPT)],
        capture_output=True, text=True, env=environment, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    apart = json.loads(done.stdout)
    assert len(apart) == 14
    assert {name: far for name, far in apart.items() if not far < 1e-5} == {}


def test_the_kernel_is_for_cuda_alone() -> None:
    query = torch.zeros(1, 1, 2, 4)
    assert not fused_here(AttentionScores(query=query, key=query, scale=1.0))
