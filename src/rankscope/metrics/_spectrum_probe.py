"""Spectra of many hidden states, one after the other, while a model runs and no one waits."""

from typing import Annotated

import torch
from torch import Tensor

from rankscope.arguments import Range, Seed, checked
from rankscope.checks import check_real, mask_like, measurable
from rankscope.metrics._estimates import EstimatedSpectra
from rankscope.metrics._golub_kahan import Starts, bidiagonalise, draw_starts
from rankscope.metrics._spectrum_stack import Batch, Place, Stack, on_host

_SEEKERS = 15

Probes = Annotated[int, Range(4, 1024)]
Steps = Annotated[int, Range(2, 256)]
Bytes = Annotated[int, Range(1, 2**48)]


@checked
def estimated_spectra(
    x: Tensor,
    *,
    token_mask: Tensor | None = None,
    probes: Probes = 16,
    steps: Steps = 16,
    seed: Seed = 0,
) -> EstimatedSpectra:
    """Ranks of each sample's token matrix by products alone; they are methods of the result.

    >>> import torch
    >>> from rankscope.metrics import estimated_spectra
    >>> estimated_spectra(torch.eye(3)).effective_rank().value.round(decimals=3)
    tensor(3., dtype=torch.float64)

    For matrices too large to decompose, on a GPU above all. Each rank comes with the error to
    expect; more ``steps`` help where the singular values span many orders of magnitude, more
    ``probes`` where few directions hold most of them.
    """
    measurable(x, token_mask)
    probe = SpectrumProbe(probes=probes, steps=steps, seed=seed, bytes_held=1)
    probe.feed(x, token_mask=token_mask)
    return probe.finish()[0]


@checked
class SpectrumProbe:
    """Takes hidden states one at a time and gives the spectra of all of them at the end.

    >>> import torch
    >>> from rankscope.metrics import SpectrumProbe
    >>> probe = SpectrumProbe()
    >>> for layer in range(3):
    ...     probe.feed(torch.eye(4)[: layer + 2])
    >>> [round(each.effective_rank().value.item(), 3) for each in probe.finish()]
    [2.0, 3.0, 4.0]

    ``feed`` never waits for the device: a state is copied, states of one shape are worked on
    together when ``bytes_held`` are full (eight of 2,048 × 4,096 in bfloat16), and only ``finish``
    brings numbers to the host. What is fed must be finite (padding apart) and is not checked, for
    looking would mean waiting; a matrix that is not, or that has no tokens, gives NaN.
    ``fourth_powers`` are needed for the participation ratio alone and cost a product of every state
    with itself.
    """

    def __init__(
        self,
        *,
        probes: Probes = 16,
        steps: Steps = 16,
        seed: Seed = 0,
        fourth_powers: bool = True,
        bytes_held: Bytes = 2**27,
    ) -> None:
        self._probes, self._steps, self._seed = probes, steps, seed
        self._fourth = fourth_powers
        self._limit = bytes_held
        self._starts: dict[object, Starts] = {}
        self._waiting: dict[object, Stack] = {}
        self._done: list[Batch] = []
        self._places: list[Place] = []

    def feed(self, x: Tensor, *, token_mask: Tensor | None = None) -> None:
        """Take the token matrices ``(..., token, feature)`` of one layer."""
        check_real(x, name="x", axes="(..., token, feature)", least=2)
        flat = x.detach().reshape(-1, *x.shape[-2:])
        mask = None
        if token_mask is not None:
            mask = mask_like(token_mask, x.shape[:-1]).reshape(flat.shape[:-1]).to(x.device)
        key = (flat.shape, flat.dtype, flat.device)
        if key not in self._waiting:
            self._waiting[key] = Stack(flat, self._limit)
        stack = self._waiting[key]
        self._places.append(Place(tuple(x.shape[:-2]), flat.shape[0]))
        stack.add(self._places[-1], flat, mask, fourth=self._fourth)
        if stack.full:
            self._run(stack)

    def finish(self) -> list[EstimatedSpectra]:
        """The spectra of all that was fed, in that order; the only moment that waits."""
        for stack in self._waiting.values():
            self._run(stack)
        self._waiting.clear()
        on_host(self._done)
        return [place.result() for place in self._places]

    def _run(self, stack: "Stack") -> None:
        if not stack.places:
            return
        starts = self._starts_for(stack.terms[0], stack.parts[0].e.dtype)
        found = bidiagonalise(stack.matrix(), starts, self._steps)
        self._done.append(Batch(list(stack.places), found, starts, stack.moments()))
        stack.clear()

    def _starts_for(self, term: Tensor, dtype: torch.dtype) -> Starts:
        key = (min(term.shape[-2:]), term.device, dtype)
        if key not in self._starts:
            self._starts[key] = draw_starts(*key, _SEEKERS, self._probes, self._seed)
        return self._starts[key]
