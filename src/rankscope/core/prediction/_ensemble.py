"""Many random networks, run layer by layer: in plain floats or in scaled arithmetic."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.functional import pad

from rankscope.core.deep import ScaledTensor, SplitState
from rankscope.core.metrics import deviations, effective_rank, mean_cosine, token_norm
from rankscope.core.network import MatrixName, Spec, Visibility
from rankscope.core.prediction._arithmetic import Plain, Scaled, widen
from rankscope.core.prediction._draws import (
    Coordinates,
    Course,
    DrawnWeights,
    Figures,
    Streams,
    compress,
)
from rankscope.core.prediction._gradients import predicted_gradients
from rankscope.core.shapes import PerSample
from rankscope.process import one_thread


def of_tokens(x: Coordinates, token_mask: Tensor | None) -> Figures:
    """Metrics of tokens in plain coordinates; all are invariant under rotations."""
    relative = deviations(x, token_mask=token_mask).relative_dispersion()
    figures = {
        "relative_dispersion": relative,
        "log10_relative_dispersion": relative.log10(),
        "mean_cosine": mean_cosine(x, token_mask=token_mask),
        "effective_rank": effective_rank(x, token_mask=token_mask),
        "token_norm": token_norm(x, token_mask=token_mask),
    }
    return {name: values.double() for name, values in figures.items()}


def of_state(state: SplitState) -> Figures:
    """Metrics of split states, whose residuals and sizes may exceed the range of floats."""
    size = state.log_norm(norm="fro")
    relative = state.log_residual(norm="fro") - torch.where(size.isneginf(), 0.0, size)
    unit = state.unit()
    plain = state.common.at(unit).unsqueeze(1) + state.deviation.at(unit)
    mask = state.token_mask
    count = torch.tensor(float(plain.shape[1])) if mask is None else mask.sum(-1)
    return {
        "relative_dispersion": relative.exp(),
        "log10_relative_dispersion": relative / math.log(10),
        "mean_cosine": mean_cosine(plain, token_mask=mask),
        "effective_rank": effective_rank(plain, token_mask=mask),
        "token_norm": (size - 0.5 * count.double().log()).exp(),
    }


# Followed in scaled arithmetic: tokens that differ by less than this part;
_ALIKE = 0.03
# those of other sizes, or with weights that change them more: squares leave float32;
_SIZES = 1e-6, 1e6
_GAINS = 0.03, 30.0
# those of which skips hold less than this part: one layer may leave them alike.
_PRESERVED = 0.1

_FAR = 30.0  # a logarithm, of sizes beyond those above

# Numbers of the largest tensor of a group. Beyond 8 MB in float64, every result of an operation is
# memory new to the process, which took a quarter of the time.
_AT_ONCE = 2**20
_AT_ONCE_ON_GPU = 2**27  # a gigabyte in float64
_BYTES_EACH = 8 * 16  # several such tensors are there at once
_SMALL = 2**21  # numbers of all layers and networks below which threads do not pay off
_DIGITS = 10 * math.log(10)  # how many of sixteen digits may be lost before a figure is in doubt

Networks = Sequence[tuple[int, int]]
"""(draw, sample) pairs: a random network each."""


class Ensemble:
    """Random networks of one spec during a run, each on its own sample."""

    def __init__(
        self,
        spec: Spec,
        x: Coordinates,
        token_mask: Tensor | None,
        streams: Streams,
        *,
        limit: bool,
    ) -> None:
        self.spec, self.mask = spec, token_mask
        self.weights = DrawnWeights(spec, streams, torch.float64, limit)
        # Scaled arithmetic does not support centred attention without a skip.
        self.only_floats = spec.centered and not spec.skips[0]
        self.precision = torch.float64 if self.only_floats else torch.float32
        scaled = self._leaves_floats(x, token_mask)
        self._plain, self._scaled = (torch.nonzero(some).flatten() for some in (~scaled, scaled))
        self.x = x[self._plain].to(self.precision)
        self.state = SplitState.of(x[scaled], self._of(self._scaled)) if scaled.any() else None
        self._lost = torch.zeros(len(x), dtype=torch.float64, device=x.device)

    def advance(self, at: int) -> PerSample:
        """Run layer ``at``, counted from 0; return the entropy of its attention."""
        mask = self.spec.masks[at]
        removed = frozenset(head for layer, head in self.spec.removed_heads if layer == at)
        entropy = torch.empty_like(self._lost)
        tokens = self.x.shape[1]
        if self.state is not None:
            seen = Visibility.of(mask, tokens, self.state.token_mask, self.x.device)
            weights = self.weights.select(self._scaled.tolist(), torch.float64)
            self.state, layer_entropy = Scaled(weights, seen, removed).layer(self.state)
            entropy[self._scaled] = layer_entropy
        if len(self._plain):
            padding = self._of(self._plain)
            seen = Visibility.of(mask, tokens, padding, self.x.device)
            weights = self.weights.select(self._plain.tolist(), self.precision)
            self.x, layer_entropy = Plain(weights, seen, removed, padding).layer(self.x)
            entropy[self._plain] = layer_entropy.double()
        self._hand_over()
        return entropy

    def lost(self) -> PerSample:
        """The largest loss of digits in sums so far, as a logarithm."""
        lost = self._lost.clone()  # of networks that returned to floats, and now of the others
        if self.state is not None:
            lost[self._scaled] = torch.maximum(lost[self._scaled], _lost(self.state))
        return lost

    def figures(self) -> Figures:
        """The metrics of the current tokens, in the order of the streams."""
        parts: list[tuple[Tensor, Figures]] = []
        if len(self._plain):
            parts.append((self._plain, of_tokens(self.x, self._of(self._plain))))
        if self.state is not None:
            parts.append((self._scaled, of_state(self.state)))
        out: Figures = {}
        for index, figures in parts:
            for name, values in figures.items():
                by_network = out.setdefault(name, values.new_empty(len(self.weights.streams)))
                by_network[index] = values
        return out

    def _leaves_floats(self, x: Coordinates, token_mask: Tensor | None) -> Bool[Tensor, "network"]:
        """Whether plain floats may fail in the next layer, by network."""
        if self.only_floats:
            return torch.zeros(len(x), dtype=torch.bool, device=x.device)
        spec, size = self.spec, token_norm(x, token_mask=token_mask)
        inner, units = spec.heads * spec.head_width, spec.mlp_width

        def gain(matrix: MatrixName, inputs: int, outputs: int) -> float:
            """The factor by which a matrix changes the norm of rows."""
            return spec.init.deviation(matrix, inputs, outputs) * math.sqrt(outputs)

        query = gain("query", spec.width, inner)
        attention = (gain("value", spec.width, inner), gain("output", inner, spec.width))
        mlp = (gain("up", spec.width, units), gain("down", units, spec.width)) if units else (1.0,)
        gains = (query, *attention, *mlp)
        moderate = _GAINS[0] <= min(gains) and max(gains) <= _GAINS[1]
        # About how much of what the branches of a layer add its skips hold, for tokens of a size.
        normed = spec.norm != "none" and spec.norm_place != "post"
        entering = math.sqrt(spec.width) if normed else size  # or if the output is normalised
        if not moderate:
            return torch.ones(len(x), dtype=torch.bool, device=x.device)
        preserved = [
            skip * size / (entering * math.prod(branch))
            for skip, branch in zip(spec.skips, (attention, mlp), strict=True)
        ]
        return need_scaling(x, token_mask) | (torch.minimum(*preserved) < _PRESERVED)

    def _of(self, index: Tensor) -> Tensor | None:
        return None if self.mask is None else self.mask[index]

    def _hand_over(self) -> None:
        """Give each network to the arithmetic that its tokens need now."""
        leaving = self._leaves_floats(self.x, self._of(self._plain))
        returning, tokens = self._fit_floats()
        if not leaving.any() and not returning.any():
            return
        to_scaled, to_plain = self._plain[leaving], self._scaled[returning]
        states = []
        if self.state is not None:
            lost = _lost(self.state.select(returning))
            self._lost[to_plain] = torch.maximum(self._lost[to_plain], lost)
            if not returning.all():
                states.append(self.state.select(~returning))
        if len(to_scaled):
            joining = SplitState.of(self.x[leaving].double(), self._of(to_scaled))
            # As wide as any becomes, so that draws do not depend on which others are there.
            tokens_wide = min(self.spec.width, self.x.shape[1] + 2)
            states.append(widen(joining, max(self.x.shape[-1], tokens_wide)))
        self.state = reduce(_stack, states) if states else None
        self._scaled = torch.cat((self._scaled[~returning], to_scaled))
        self._plain = torch.cat((self._plain[~leaving], to_plain))
        columns = max(self.x.shape[-1], tokens.shape[-1])
        plain = (self.x[~leaving], tokens)
        self.x = torch.cat([pad(x, (0, columns - x.shape[-1])) for x in plain])

    def _fit_floats(self) -> tuple[Bool[Tensor, "network"], Coordinates]:
        """Which networks in scaled arithmetic no longer need it, and their tokens."""
        fit = torch.zeros(len(self._scaled), dtype=torch.bool, device=self.x.device)
        if self.state is None:
            return fit, self.x[:0]
        unit = self.state.unit()  # a first look, without the tokens themselves
        fit |= (unit.abs() < _FAR) & (self.state.deviation.log > unit - _FAR)
        if not fit.any():
            return fit, self.x[:0]
        x = compress(self.state.select(fit).tensor().to(self.precision))
        staying = self._leaves_floats(x, self._of(self._scaled[fit]))
        fit[fit.clone()] = ~staying
        return fit, x[~staying]


def _lost(state: SplitState) -> PerSample:
    """The larger loss of digits of both parts."""
    common, deviation = (
        torch.as_tensor(part.lost, device=state.device).expand(len(state.mantissa))
        for part in (state.common, state.deviation)
    )
    return torch.maximum(common, deviation).double()


def need_scaling(x: Coordinates, token_mask: Tensor | None) -> Bool[Tensor, "network"]:
    """Whether tokens are nearly equal, or their squares leave the range of float32."""
    alike = deviations(x, token_mask=token_mask).relative_dispersion() < _ALIKE
    size = token_norm(x, token_mask=token_mask)
    return alike | (size < _SIZES[0]) | (size > _SIZES[1])


def _stack(first: SplitState, second: SplitState) -> SplitState:
    """Concatenate two batches of states."""
    columns = max(state.mantissa.shape[-1] for state in (first, second))
    first, second = (widen(state, columns) for state in (first, second))
    mask = None
    if first.token_mask is not None and second.token_mask is not None:
        mask = torch.cat((first.token_mask, second.token_mask))
    common, deviation = (
        ScaledTensor(
            torch.cat((a.mantissa, b.mantissa)),
            torch.cat((a.log, b.log)),
            torch.cat([torch.as_tensor(part.lost).expand_as(part.log) for part in (a, b)]),
        )
        for a, b in ((first.common, second.common), (first.deviation, second.deviation))
    )
    return SplitState(common, deviation, mask)


@dataclass(frozen=True)
class PredictionTask:
    """What to compute for every network."""

    spec: Spec
    tokens: Coordinates
    token_mask: Tensor | None
    seed: int
    gradients: bool
    limit: bool

    @torch.no_grad()  # needed in every thread
    def run(self, networks: Networks) -> tuple[Course, int]:
        """Every metric by layer and network, and the number of networks in doubt."""
        device = self.tokens.device
        index = torch.tensor([sample for _, sample in networks], device=device)
        x = self.tokens[index]
        mask = None if self.token_mask is None else self.token_mask[index]
        streams = Streams.of(self.seed, networks, device=device)
        ensemble = Ensemble(self.spec, x, mask, streams, limit=self.limit)
        figures = [ensemble.figures()]
        entropies = [torch.full_like(next(iter(figures[0].values())), math.nan)]
        for layer in range(self.spec.layers):
            entropies.append(ensemble.advance(layer))
            figures.append(ensemble.figures())
        doubtful = int((ensemble.lost() > _DIGITS).sum())
        by_layer = {name: torch.stack([row[name] for row in figures]) for name in figures[0]}
        by_layer["attention_entropy"] = torch.stack(entropies)
        if self.gradients:
            again = Streams.of(self.seed, networks, "gradients", device=device)
            by_layer |= predicted_gradients(self.spec, x, mask, again)
        return {name: values.cpu() for name, values in by_layer.items()}, doubtful


def side_by_side(task: PredictionTask, networks: Networks) -> list[tuple[Course, int]]:
    """All networks, in groups that fit into memory; on a CPU one thread each.

    Half of the work is decompositions and random numbers, for which PyTorch uses one thread there.
    """
    spec, tokens = task.spec, task.tokens.shape[1]
    heads = spec.heads * max(tokens, spec.head_width)
    # The approximate number of values in the widest part of a layer, for one network.
    numbers = (tokens + 1) * max((1 + spec.gated) * spec.mlp_width, heads, 2 * tokens)
    values_each = numbers
    if task.gradients:  # the results of all layers are kept
        values_each = 4 * spec.layers * (numbers + (tokens + 1) * spec.width)
    if task.tokens.is_cuda:
        free, _ = torch.cuda.mem_get_info(task.tokens.device)
        size = max(1, min(_AT_ONCE_ON_GPU, free // _BYTES_EACH) // values_each)
        return [task.run(group) for group in _groups(networks, size)]
    size = max(1, _AT_ONCE // values_each)
    groups = _groups(networks, size)
    with one_thread() as threads, ThreadPoolExecutor(threads) as pool:
        if numbers * len(networks) * spec.layers > _SMALL:
            groups = _groups(networks, min(size, math.ceil(len(networks) / threads)))
        return list(pool.map(task.run, groups))


def _groups(networks: Networks, size: int) -> list[Networks]:
    return [networks[at : at + size] for at in range(0, len(networks), size)]
