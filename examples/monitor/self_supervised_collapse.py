"""A self-supervised model that collapses while its loss falls, and one that does not.

Two noisy views of a sequence should have the same embedding. The lowest loss is that of a constant
embedding, so the loss looks excellent while everything is lost; the alarm ``rank-falls-with-loss``
is about that. A variance term keeps embeddings of different sequences apart.

Run it with ``python examples/monitor/self_supervised_collapse.py``.
"""

import argparse
import logging
import tempfile

import torch
from torch import Tensor, nn
from torch.nn import functional

import rankscope

WORDS, TOKENS, WIDTH = 32, 12, 32


class Encoder(nn.Module):
    """A small transformer whose mean token is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(3)
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)


def two_views(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The same sequences twice, with other words replaced."""
    ids = torch.randint(WORDS, (32, TOKENS), generator=generator)
    noise = torch.randint(WORDS, (2, *ids.shape), generator=generator)
    kept = torch.rand(noise.shape, generator=generator) > 0.3
    first, second = torch.where(kept, ids, noise)
    return first, second


def train(steps: int, every: int, folder: str, *, variance: float) -> rankscope.Monitor:
    """A plain loop with a monitor; ``variance`` is the weight of the term against collapse."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Encoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    probe = torch.randint(WORDS, (16, TOKENS), generator=generator)
    with rankscope.Monitor(model, probe, every=every, folder=folder) as monitor:
        for _ in range(steps):
            views = [model(view) for view in two_views(generator)]
            loss = functional.mse_loss(*views)
            for view in views:
                loss = loss + variance * functional.relu(1 - (view.var(0) + 1e-4).sqrt()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.step(loss=loss)
    return monitor


def main(steps: int, folder: str, every: int = 5) -> dict[str, rankscope.Monitor]:
    """Both; a line for each, and its alarms."""
    monitors = {}
    for name, variance in (("views alone", 0.0), ("with a variance term", 1.0)):
        monitor = train(steps, every, f"{folder}/{name.replace(' ', '-')}", variance=variance)
        history, rank = monitor.history, "pooled/effective_rank"
        print(
            f"{name}: loss {history.first('loss'):.2g} → {history.last.get('loss'):.2g}, effective "
            f"rank of 16 embeddings {history.first(rank):.1f} → {history.last.get(rank):.1f}"
        )
        for alarm in monitor.alarms:
            print(f"  {alarm.rule}: {alarm.sentence}")
        monitors[name] = monitor
    return monitors


if __name__ == "__main__":
    logging.getLogger("rankscope.monitor").setLevel(logging.ERROR)  # alarms are printed above
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    with tempfile.TemporaryDirectory() as temporary:
        main(parser.parse_args().steps, temporary)
