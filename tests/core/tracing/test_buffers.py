"""Buffers that a forward pass writes to are after a trace what they were before."""

import pytest
import torch
from torch import nn

from rankscope import trace


class _Writing(nn.Module):
    """A block that counts its passes: in place, by replacing the buffer, or by making one."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.register_buffer("count", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("cache", None)
        self.normed = nn.BatchNorm1d(8)

    def forward(self, x):
        if self.how == "in place":
            self.count += 1
        elif self.how == "replaced":
            self.count = self.count + 1
        else:
            self.cache = x.detach().clone()
        y = x + self.attention(x, x, x)[0]
        return self.normed(y.transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize("how", ["in place", "replaced", "made"])
def test_buffers_are_left_as_found(how):
    model = nn.Sequential(*(_Writing(how) for _ in range(3))).train()
    model(torch.randn(2, 5, 8))
    before = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    caches = [block.cache for block in model]
    trace(model, torch.randn(2, 5, 8))
    after = dict(model.named_buffers())
    assert after.keys() == before.keys()
    for name, (buffer, values) in before.items():
        assert after[name] is buffer
        assert torch.equal(buffer, values)
    assert all(block.cache is cache for block, cache in zip(model, caches, strict=True))
    assert all(block.training for block in model.modules())


def test_buffers_are_left_as_found_after_an_error():
    class Failing(_Writing):
        def forward(self, x):
            super().forward(x)
            raise ValueError("stop")

    model = nn.Sequential(_Writing("in place"), Failing("replaced"))
    with pytest.raises(ValueError, match="stop"):
        trace(model, torch.randn(2, 5, 8), blocks=list(model))
    assert [block.count.tolist() for block in model] == [[0, 0, 0], [0, 0, 0]]
