"""From the description of a network to what a question is asked about: weights and an input."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.network import Network, Spec
from rankscope.errors import InputError
from rankscope.experiments.estimates import refuse_impossible
from rankscope.experiments.subject import Subject
from rankscope.models.text import check_texts, embed
from rankscope.numerals import plural


@checked
def random_subject(
    spec: Spec,
    texts: Sequence[str],
    *,
    length: int = 128,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str | None = None,
    special_tokens: bool = True,
    read_from: str = "given texts",
) -> Subject:
    """A random network and what it reads; ``seed`` draws the weights and the embedding.

    >>> from rankscope.core.network import Spec
    >>> random_subject(Spec(2, 2, 8), ["A rose is a rose."]).name
    'A random network: 2 layers, 2 heads, width 8'

    ``special_tokens=False`` leaves CLS and SEP out of the figures; the network still sees them.
    ``read_from`` names the source of the texts in the provenance.
    """
    refuse_impossible(spec, dtype)
    net = Network.random(spec, seed=seed, dtype=dtype).to(device)
    check = check_texts(texts, length=length)
    x, token_mask = embed(texts, spec.width, length=length, seed=seed, dtype=dtype)
    x, token_mask = x.to(device), token_mask.to(device)
    shape = f"{plural(spec.layers, 'layer')}, {plural(spec.heads, 'head')}, width {spec.width}"
    about = {
        "norm": "none" if spec.norm == "none" else f"{spec.norm}, {spec.norm_place}",
        "init": str(spec.init),
        "mask": str(spec.mask),
        "input": check.summary(read_from),
        "special tokens": "counted" if special_tokens else "left out of the figures",
        "dtype": str(x.dtype),
    }
    measured = None if special_tokens else _between(token_mask)
    title = f"A random network: {shape}"
    return Subject(net, x, token_mask, measured, title, about, check=check)


def _between(token_mask: Tensor) -> Tensor:
    """The tokens between CLS and SEP, which stand first and last in bundled tokenisation."""
    position = token_mask.cumsum(-1)
    inner = token_mask & (position > 1) & (position < token_mask.sum(-1, keepdim=True))
    if not bool(inner.any(-1).all()):
        raise InputError("some sample has no token besides CLS and SEP; keep special tokens.")
    return inner
