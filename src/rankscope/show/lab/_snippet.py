"""A state as a short program that computes its figures without the lab."""

from typing import Any

from rankscope.show.lab._network import matrix_of, spec_fields
from rankscope.show.lab._state import State

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

# What paths of each length carry, and a chart of the whole.
lengths = path_lengths(network, x)
print(lengths)
deep.plot().save("lab.html")
"""


def snippet(state: State) -> str:
    """A program that builds the state's network and tokens and measures them."""
    fields = spec_fields(state)
    names = sorted({type(each).__name__ for each in fields.values() if _is_ours(each)})
    imports = f"from rankscope.core.network import {', '.join(names)}\n"
    if state.input == "normal":
        imports += "from rankscope.streams import stream\n"
    mask, written = _mask(state)
    if "mask" in fields:
        fields["mask"] = None
    lines = [f"    {name}={written if name == 'mask' else repr(v)}," for name, v in fields.items()]
    tokens = _ARC if state.input == "arc" else _NORMAL
    numbers = {"tokens": state.tokens, "width": state.width, "seed": state.seed}
    return _PROGRAM.format(
        query=state.query(),
        imports=imports,
        mask=mask,
        layers=state.layers,
        heads=state.heads,
        width=state.width,
        fields="\n".join(lines),
        seed=state.seed,
        tokens=tokens.format(**numbers),
        format=state.format,
    )


def _is_ours(value: Any) -> bool:
    return type(value).__module__.startswith("rankscope.")


def _mask(state: State) -> tuple[str, str]:
    """Lines that make the mask, if it is a matrix, and how the spec's call names it."""
    kind, _, digits = state.mask.partition(":")
    if kind != "bits":
        return "", repr(state.mask)
    rows = matrix_of(digits, state.tokens).int().tolist()
    listed = "\n".join(f'    "{"".join(map(str, row))}",' for row in rows)
    lines = f"rows = [\n{listed}\n]\nmask = torch.tensor([[c == '1' for c in row] for row in rows])"
    return lines + "\n", "mask"
