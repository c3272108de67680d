"""What does a training step cost, of one seed and of five at once, beside plain PyTorch?"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from measuring import Job, Ratio, interleaved
from rankscope import Spec
from rankscope.models.training import Classify, Recipe, SequenceModel, Sorting, train

PLAIN, ONE, FIVE = "plain PyTorch, one seed", "one seed", "five seeds at once"
BARE_ONE, BARE_FIVE = "one seed, no MLPs", "five seeds at once, no MLPs"
_SCRIPT = 18.5e-3
"""Seconds of a step of the 2021 paper's sorting script, at these sizes without MLPs, on two idle
cores."""
_LAYERS, _HEADS, _WIDTH, _BATCH, _STEPS = 6, 2, 48, 30, 33
_SORTING = Sorting()


def main() -> list[Ratio]:
    """An epoch of the script's sorting run: 1,000 sequences, 30 at a time."""
    jobs: dict[str, Job] = {
        PLAIN: _plain(),
        ONE: _ours(1, mlp_ratio=1.0),
        FIVE: _ours(5, mlp_ratio=1.0),
        BARE_ONE: _ours(1, mlp_ratio=0.0),
        BARE_FIVE: _ours(5, mlp_ratio=0.0),
    }
    seconds = interleaved(jobs, rounds=5)
    print(f"Training, sorting, {_LAYERS} layers, {_HEADS} heads, width {_WIDTH}, batch {_BATCH}")
    for job in jobs:
        print(f"  {job:<30} {1e3 * seconds[job] / _STEPS:6.2f} ms a step")
    print(f"  {'the 2021 script, two idle cores':<30} {1e3 * _SCRIPT:6.2f} ms a step, published")
    return [
        Ratio("training step, one seed / plain PyTorch", seconds.ratio(ONE, PLAIN), 1.0),
        Ratio("training step, five seeds / five plain", seconds.ratio(FIVE, PLAIN) / 5, 0.6),
        Ratio("training step, one seed / the script's third", 3 * _step(seconds[BARE_ONE]), 1.0),
        Ratio("training step, five seeds / the script's one", _step(seconds[BARE_FIVE]), 1.0),
    ]


def _step(seconds: float) -> float:
    """A step of ours over one of the script's; it was timed on two idle cores."""
    return seconds / _STEPS / _SCRIPT


def _ours(seeds: int, *, mlp_ratio: float) -> Job:
    spec = Spec(_LAYERS, _HEADS, _WIDTH, mlp_ratio=mlp_ratio, norm_place="post", init="xavier")
    models = [
        SequenceModel.random(spec, outputs=10, symbols=10, positions=8, seed=seed)
        for seed in range(seeds)
    ]
    examples = [_SORTING.draw(1000, seed, "training") for seed in range(seeds)]
    recipe = Recipe(_STEPS, _BATCH, scored=1)
    return lambda: train(models, Classify(), examples, recipe, seeds=range(seeds))


def _plain() -> Job:
    """The same shape of network from PyTorch's own parts, in the usual loop."""
    block = nn.TransformerEncoderLayer(
        _WIDTH, _HEADS, _WIDTH, dropout=0.0, activation="gelu", batch_first=True
    )
    blocks = nn.TransformerEncoder(block, _LAYERS, enable_nested_tensor=False)
    embedding, readout = nn.Embedding(10, _WIDTH), nn.Linear(_WIDTH, 10)
    positions = nn.Parameter(torch.zeros(8, _WIDTH))
    weights = [*blocks.parameters(), *embedding.parameters(), *readout.parameters(), positions]
    optimiser = torch.optim.AdamW(weights, lr=1e-3)
    data = _SORTING.draw(1000, 0, "training")

    def epoch() -> None:
        for rows in torch.arange(_STEPS * _BATCH).split(_BATCH):
            outputs = readout(blocks(embedding(data.inputs[rows]) + positions))
            loss = cross_entropy(outputs.flatten(0, 1), data.targets[rows].flatten())
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimiser.step()

    return epoch


if __name__ == "__main__":
    main()
