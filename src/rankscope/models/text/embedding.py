"""Texts → the blocks' input: token and position embeddings as at BERT's initialisation."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import layer_norm
from torch.nn.utils.rnn import pad_sequence

from rankscope.arguments import Count, checked
from rankscope.core.checks import real_dtype
from rankscope.errors import InputError
from rankscope.models.text.tokenizer import Tokenizer
from rankscope.streams import stream

_BERT_STD = 0.02
_BERT_EPS = 1e-12
_USUAL_LENGTH = 4096


@checked
def embed(
    texts: Sequence[str],
    width: Count,
    *,
    length: Count = 128,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, "batch token feature"], Bool[Tensor, "batch token"]]:
    """Random embeddings of texts and their token mask, each text cut to ``length`` tokens.

    >>> from rankscope.models.text import embed, passages
    >>> x, token_mask = embed(passages()[:2], 16)
    >>> x.shape
    torch.Size([2, 128, 16])

    Token plus absolute position, both normal with standard deviation 0.02, then LayerNorm: what
    BERT feeds its blocks before training. Absolute positions leave the scores without pairwise
    terms, so pure attention on this input collapses doubly exponentially (docs/theory.md,
    section 5).
    """
    real_dtype("dtype", dtype)
    if not texts:
        raise InputError("embed takes a list of one or more texts.")
    tokenizer = Tokenizer.bundled()
    rows = [torch.tensor(tokenizer(text, length=length)) for text in texts]
    ids = pad_sequence(rows, batch_first=True, padding_value=0)

    def draw(name: str, rows: int) -> Tensor:
        generator = stream(seed, "embedding", name)
        return torch.randn(rows, width, generator=generator, dtype=torch.float64) * _BERT_STD

    # Enough rows for any usual length, so that a text's embedding does not depend on the batch.
    rows_of_positions = max(ids.shape[1], min(length, _USUAL_LENGTH))
    tokens = draw("tokens", len(tokenizer.vocabulary))
    positions = draw("positions", rows_of_positions)
    summed = tokens[ids] + positions[: ids.shape[1]]
    return layer_norm(summed, (width,), eps=_BERT_EPS).to(dtype), ids != 0
