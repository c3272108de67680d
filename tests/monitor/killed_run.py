"""A run that is killed at its seventh step: see test_monitor.py."""

import os
import signal
import sys

import torch

from rankscope import Monitor, Network, Spec

net = Network.random(Spec(2, 2, 8), seed=0)
probe = torch.ones(2, 3, 8).cumsum(1).sin()
with Monitor(net, probe, every=2, folder=sys.argv[1]) as monitor:
    for step in range(1, 8):
        monitor.step(loss=float(step))
    os.kill(os.getpid(), signal.SIGKILL)
