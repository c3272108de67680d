"""Train a deep network without skip connections, watch it collapse, and save it.

Ten layers of attention have to name the symbol before each symbol of a sequence. Without skip
connections all tokens are alike after a few layers, already at initialisation, which the alarm
``collapsed-init`` says before the first step; the loss stays near that of guessing. A skip
connection saves it, and so does attention that begins near the identity: each token looks at
itself, and values are rotations.

Run it with ``python examples/monitor/skipless_network.py``.
"""

import argparse
import logging
import math
import tempfile

import torch
from torch import Tensor, nn
from torch.nn import functional

import rankscope

SYMBOLS, TOKENS, WIDTH, HEADS, LAYERS = 4, 12, 32, 2, 10


class Layer(nn.Module):
    """Attention and a norm; ``skip`` adds its input, ``own`` is a bias towards one's own token."""

    def __init__(self, *, skip: bool, own: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.skip, self.bias = skip, own * torch.eye(TOKENS)
        if own:  # values that begin as a rotation keep what they are given
            nn.init.orthogonal_(self.value.weight)
            nn.init.orthogonal_(self.output.weight)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            linear(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        y = functional.scaled_dot_product_attention(q, k, v, self.bias)
        y = self.output(y.transpose(1, 2).flatten(2))
        return self.norm(x + y if self.skip else y)


class Classifier(nn.Module):
    """Embeddings, layers, and a readout of every token."""

    def __init__(self, *, skip: bool = False, own: float = 0.0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(Layer(skip=skip, own=own) for _ in range(LAYERS))
        self.readout = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.readout(x)


def train(model: Classifier, steps: int, every: int, folder: str) -> rankscope.Monitor:
    """A plain loop with a monitor."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    probe = torch.randint(SYMBOLS, (16, TOKENS), generator=generator)
    with rankscope.Monitor(model, probe, every=every, classes=SYMBOLS, folder=folder) as monitor:
        for _ in range(steps):
            ids = torch.randint(SYMBOLS, (32, TOKENS), generator=generator)
            logits = model(ids)[:, 1:]
            loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, :-1].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.step(loss=loss)
    return monitor


def main(steps: int, folder: str, every: int = 10) -> dict[str, rankscope.Monitor]:
    """All three; a line for each, and its alarms."""
    designs = {
        "no skip": {},
        "a skip connection": {"skip": True},
        "begins near the identity": {"own": math.log(4 * TOKENS)},
    }
    monitors = {}
    for name, options in designs.items():
        torch.manual_seed(0)
        monitor = train(Classifier(**options), steps, every, f"{folder}/{name.replace(' ', '-')}")
        history = monitor.history
        start, end = (record.get("rank/residual", LAYERS) for record in
                      (history.baseline, history.last))  # fmt: skip
        print(
            f"{name}: residual of the last layer {start:.2g} at initialisation, {end:.2g} at the "
            f"end; loss {history.first('loss'):.2f} → {history.last.get('loss'):.2f}"
        )
        for alarm in monitor.alarms:
            print(f"  {alarm.rule}: {alarm.sentence}")
        monitors[name] = monitor
    return monitors


if __name__ == "__main__":
    logging.getLogger("rankscope.monitor").setLevel(logging.ERROR)  # alarms are printed above
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=260)
    with tempfile.TemporaryDirectory() as temporary:
        main(parser.parse_args().steps, temporary)
