"""Beside other tools: what watching every layer costs here, in TransformerLens and in nnsight.

Neither is needed by rankscope. Whichever is not installed is left out, and that is said; into an
environment of their own: ``pip install torch==2.13.0 transformer_lens nnsight``, and then
``PYTHONPATH=src python benchmarks/others.py``. No figure here has a bar.

The tools do different things. ``trace`` keeps four numbers for each layer and sample, nnsight is
asked for every block's output, ``run_with_cache`` keeps every activation it has a name for, and
(last line) only the residual stream after each block. All run the same weights.
"""

import copy
import os
import statistics
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers as hf

from measuring import Job, interleaved, peak_bytes
from rankscope import trace

PLAIN = "plain forward pass"
WORDS = 1000


class Shape(NamedTuple):
    """A GPT-2 of some size, and how much it reads."""

    name: str
    layers: int
    heads: int
    width: int
    batch: int
    tokens: int = 128


SHAPES = (Shape("small", 6, 6, 384, 16), Shape("BERT-base's size", 12, 12, 768, 8))


def make(shape: Shape) -> hf.GPT2LMHeadModel:
    """Random weights; few words, so that the logits weigh little."""
    torch.manual_seed(0)
    sizes = {"n_layer": shape.layers, "n_head": shape.heads, "n_embd": shape.width}
    more = {"vocab_size": WORDS, "n_positions": shape.tokens, "use_cache": False}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **more, **ends)).eval()


def installed(*packages: str) -> dict[str, str]:
    """Versions by name; those that are not there are left out."""
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            print(f"  {package} is not installed: left out")
    return versions


def saving_every_layer(model: hf.GPT2LMHeadModel, ids: torch.Tensor) -> Job:
    """nnsight: the output of each block."""
    from nnsight import NNsight

    watched = NNsight(model)

    def job() -> list[Any]:
        saved: list[Any] = []
        with watched.trace(ids):
            for layer in watched.transformer.h:
                saved.append(layer.output.save())  # nnsight reads this source: no list of its own
        return saved

    return job


def with_cache(model: hf.GPT2LMHeadModel, ids: torch.Tensor) -> dict[str, Job]:
    """TransformerLens: its bridge around a copy of the model, which it changes."""
    from transformer_lens.model_bridge import TransformerBridge

    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(
            folder, hf_model=copy.deepcopy(model), device="cpu"
        )

    def is_output(name: str) -> bool:
        return name.endswith("hook_out") and name.count(".") == 2 and name.startswith("blocks.")

    return {
        "TransformerLens, plain": lambda: bridge(ids, return_type="logits"),
        "TransformerLens run_with_cache": lambda: bridge.run_with_cache(ids),
        "TransformerLens, block outputs": lambda: bridge.run_with_cache(
            ids, names_filter=is_output
        ),
    }


def compare(shape: Shape, there: dict[str, str], *, rounds: int) -> None:
    """One table: processor time beside the plain pass of its round, and the most memory held.

    In brackets the quartiles over the rounds.
    """
    model, ids = make(shape), torch.randint(0, WORDS, (shape.batch, shape.tokens))
    jobs: dict[str, Job] = {
        PLAIN: lambda: model(ids),
        "rankscope trace": lambda: trace(model, {"input_ids": ids}),
        "plain forward pass, once more": lambda: model(ids),  # how far a ratio of 1 comes out wrong
    }
    if "nnsight" in there:
        jobs["nnsight, every layer saved"] = saving_every_layer(model, ids)
    if "transformer_lens" in there:
        jobs |= with_cache(model, ids)
    with torch.no_grad():
        check(jobs, shape)
        seconds = interleaved(jobs, rounds=rounds, clock=time.process_time)
        peaks = {name: peak_bytes(job) for name, job in jobs.items()}
    print(
        f"{shape.name}: {shape.layers} layers, width {shape.width}, "
        f"{shape.batch} × {shape.tokens} tokens, {torch.get_num_threads()} threads"
    )
    for name in jobs:
        pairs = zip(seconds.rounds[name], seconds.rounds[PLAIN], strict=True)
        low, _, high = statistics.quantiles([first / other for first, other in pairs])
        print(
            f"  {name:<32} {seconds[name] * 1e3:7.0f} ms  {seconds.ratio(name, PLAIN):6.2f}× "
            f"({low:.2f} to {high:.2f})  "
            f"peak {peaks[name] / 2**20:8.1f} MiB  {peaks[name] / peaks[PLAIN]:6.2f}×"
        )


def check(jobs: dict[str, Job], shape: Shape) -> None:
    """Every tool sees each of the layers, and the same logits come out."""
    logits = jobs[PLAIN]().logits  # type: ignore[attr-defined]
    assert max(jobs["rankscope trace"]().columns["layer"]) == shape.layers  # type: ignore[attr-defined]
    if "nnsight, every layer saved" in jobs:
        saved: Any = jobs["nnsight, every layer saved"]()
        assert len(saved) == shape.layers
    if "TransformerLens, plain" in jobs:
        theirs: Any = jobs["TransformerLens, plain"]()
        torch.testing.assert_close(theirs, logits, atol=1e-3, rtol=1e-3)
        _, cache = jobs["TransformerLens, block outputs"]()  # type: ignore[misc]
        assert len(cache) == shape.layers, list(cache)


def main() -> None:
    """Both sizes, with the versions that were there."""
    there = installed("nnsight", "transformer_lens")
    named = {**installed("torch", "transformers"), **there}
    print("Beside other tools: " + ", ".join(f"{name} {number}" for name, number in named.items()))
    for shape in SHAPES:
        compare(shape, there, rounds=13 if shape.layers == 6 else 5)


if __name__ == "__main__":
    main()
