"""Keys drawn at random, the same ones whenever they are asked for."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import whole
from rankscope.core.masks._codes import Codes, row_codes
from rankscope.core.masks._mask import LengthMask, count
from rankscope.errors import SpecError
from rankscope.streams import stream_seed


@checked
@dataclass(frozen=True)
class Random(LengthMask):
    """Every token attends to ``count`` different tokens, drawn evenly from all of them.

    The draw depends on the seed and the number of tokens alone. A token need not draw itself:
    ``Random(2) | window(0)`` adds the self-loops.
    """

    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        count("Random count", self.count, least=1)
        whole("Random seed", self.seed, least=0, error=SpecError)

    def keys(self, tokens: int) -> Codes:
        """The keys each query draws, shape (query, draw); all tokens if there are no more.

        Floyd's way to draw a subset: the k-th draw is from the first k, and k itself if taken.
        The raw numbers of PCG64 are the same in every version of NumPy; its distributions are not.
        """
        count = min(self.count, tokens)
        if count == tokens:
            return np.broadcast_to(np.arange(tokens), (tokens, tokens))
        raw = np.random.PCG64(stream_seed(self.seed, "mask", tokens))
        numbers = raw.random_raw(tokens * count).reshape(tokens, count)
        drawn = np.full((tokens, count), -1, dtype=np.int64)
        for place, top in enumerate(range(tokens - count, tokens)):
            one = (numbers[:, place] % np.uint64(top + 1)).astype(np.int64)
            taken = (drawn == one[:, None]).any(-1)
            drawn[:, place] = np.where(taken, top, one)
        return drawn

    def allows_in(
        self, query: Int[Tensor, "..."], key: Int[Tensor, "..."], tokens: Int[Tensor, "..."]
    ) -> Bool[Tensor, "..."]:
        allowed = torch.zeros_like(query + key + tokens, dtype=torch.bool)
        for length in tokens.unique().tolist():
            if self.count >= length:
                allowed |= tokens == length
                continue
            drawn = torch.from_numpy(self.keys(length)).to(query.device)
            inside = query.clamp(min=0, max=length - 1)
            hit = torch.zeros_like(allowed)
            for column in drawn.unbind(-1):
                hit |= column[inside] == key
            allowed |= hit & (tokens == length)
        return allowed

    def most_edges(self, tokens: int) -> int:
        return tokens * min(self.count, tokens)

    def codes(self, tokens: int) -> Codes:
        self.refuse_many(self.most_edges(tokens), tokens)
        return row_codes(self.keys(tokens), tokens)

    def __str__(self) -> str:
        return f"random({self.count}, seed {self.seed})"
