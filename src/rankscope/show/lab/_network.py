"""Convert a state to a spec, a network and its input."""

import math
from typing import Any

import torch
from torch import Tensor

from rankscope.core.masks import Mask, as_mask
from rankscope.core.network import SCORES, Init, Network, Spec
from rankscope.show.lab._state import State
from rankscope.streams import stream

_SCORES = {entry.name: entry.usual for entry in SCORES.values()}
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def spec_fields(state: State) -> dict[str, Any]:
    """The arguments of ``Spec`` that differ from its defaults; the mask as given."""
    init = Init(state.init, state.scale)  # type: ignore[arg-type]
    score_scale = state.sharpness / math.sqrt(state.width // state.heads)
    fields = {"init": init, "mlp_ratio": state.mlp, "norm": state.norm, "skip": state.skip}
    fields |= {"norm_place": state.norm_place} if state.norm != "none" else {}
    fields |= {"mask": state.mask} if state.mask != "full" else {}
    fields |= {"shared_layers": True} if state.shared == "yes" else {}
    fields |= {"scores": _SCORES[state.scores]} if state.scores != "dot" else {}
    return fields | ({"score_scale": score_scale} if state.sharpness != 1 else {})


def spec_of(state: State) -> Spec:
    """The spec of a state; raises if it is invalid."""
    fields = spec_fields(state)
    return Spec(state.layers, state.heads, state.width, **(fields | {"mask": mask_of(state)}))


def mask_of(state: State) -> Mask:
    """The mask, from its name or its bits."""
    kind, _, digits = state.mask.partition(":")
    return as_mask(matrix_of(digits, state.tokens) if kind == "bits" else state.mask)


def matrix_of(digits: str, tokens: int) -> Tensor:
    """The boolean matrix encoded by hex digits, row by row."""
    bits = "".join(f"{int(digit, 16):04b}" for digit in digits)[: tokens**2]
    return torch.tensor([bit == "1" for bit in bits]).view(tokens, tokens)


def network_of(state: State) -> Network:
    """The network, initialised in float64; other formats round its weights."""
    return Network.random(spec_of(state), seed=state.seed, dtype=torch.float64)


def input_of(state: State) -> Tensor:
    """One sequence of tokens, each of norm about √width."""
    if state.input == "arc":
        turn = torch.linspace(0, math.pi, state.tokens, dtype=torch.float64)
        places = math.sqrt(state.width) * torch.stack([turn.cos(), turn.sin()], -1)
        return torch.nn.functional.pad(places, (0, state.width - 2)).unsqueeze(0)
    generator = stream(state.seed, "lab", "tokens")
    shape = (1, state.tokens, state.width)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


_ARC = """\
turn = torch.linspace(0, torch.pi, {tokens}, dtype=torch.float64)
places = {width} ** 0.5 * torch.stack([turn.cos(), turn.sin()], -1)
x = torch.nn.functional.pad(places, (0, {width} - 2)).unsqueeze(0)"""
_NORMAL = """\
generator = stream({seed}, "lab", "tokens")
x = torch.randn(1, {tokens}, {width}, generator=generator, dtype=torch.float64)"""
_PROGRAM = """\
# Made by 'rankscope lab'; the same state in the lab: /?{query}
import copy

import torch

from rankscope import Network, Spec, deep_trace, path_lengths, trace
{imports}
{mask}spec = Spec(
    {layers},
    {heads},
    {width},
{fields}
)
network = Network.random(spec, seed={seed}, dtype=torch.float64)
{tokens}

# The relative residual of every layer, in scaled arithmetic and in {format}.
deep = deep_trace(network, x)
rounded = copy.deepcopy(network).to(torch.{format})
plain = trace(rounded, x.to(torch.{format}), metrics="relative_residual")
print(deep.table.filter(metric="log10_relative_residual"))
print(plain.table)

# Contribution of paths by length, and a chart.
lengths = path_lengths(network, x)
print(lengths)
deep.plot().save("lab.html")
"""


def snippet(state: State) -> str:
    """A Python program that builds the state's network and input and measures them."""
    fields = spec_fields(state)
    ours = (type(value) for value in fields.values())
    names = {kind.__name__ for kind in ours if kind.__module__.startswith("rankscope.")}
    imports = f"from rankscope.core.network import {', '.join(sorted(names))}\n"
    if state.input == "normal":
        imports += "from rankscope.streams import stream\n"
    written = {name: repr(value) for name, value in fields.items()}
    kind, _, digits = state.mask.partition(":")
    mask = ""
    if kind == "bits":
        rows = matrix_of(digits, state.tokens).int().tolist()
        listed = "\n".join(f'    "{"".join(map(str, row))}",' for row in rows)
        mask = f"rows = [\n{listed}\n]\n"
        mask += "mask = torch.tensor([[c == '1' for c in row] for row in rows])\n"
        written["mask"] = "mask"
    tokens = _ARC if state.input == "arc" else _NORMAL
    return _PROGRAM.format(
        query=state.query(),
        imports=imports,
        mask=mask,
        layers=state.layers,
        heads=state.heads,
        width=state.width,
        fields="\n".join(f"    {name}={text}," for name, text in written.items()),
        seed=state.seed,
        tokens=tokens.format(tokens=state.tokens, width=state.width, seed=state.seed),
        format=state.format,
    )
