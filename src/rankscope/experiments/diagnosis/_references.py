"""References for a model: other inputs, other weights, other designs; and choices of samples."""

import math
from dataclasses import replace
from functools import partial
from typing import Final

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.core.batches import Batch, gathered
from rankscope.core.metrics import deviations
from rankscope.core.network import Network, drawable
from rankscope.core.prediction import predict
from rankscope.core.theory import thresholds
from rankscope.errors import InputError, RankscopeError
from rankscope.experiments import advice, kit
from rankscope.experiments.diagnosis._measure import ModelFigures
from rankscope.experiments.diagnosis._stages import masks
from rankscope.experiments.diagnosis._tokens import last_token
from rankscope.numerals import plural, power_of_ten, short
from rankscope.results import Listing

_INITIAL, _PREDICTED, _TWIN = "random weights", "predicted", "untrained twin"
_CURVES: Final = ["relative_residual", "relative_dispersion"]
_EXPONENT: Final = "log10_relative_dispersion"
_DRAWS: Final = 8
_SAMPLES: Final = 2
"""Samples that predictions are made for; every draw reads each of them."""
_MOST: Final = 8
"""Remedies that are listed."""
REMEDIES: Final = (
    "Changes of the design with this model's weights: relative residual (medians over samples)"
)
LEAST_TOKENS: Final = 32
"""Tokens of a text below which an eighth of it says nothing."""
_CONTEXTS: Final = (0.125, 0.25, 0.5)
"""Parts of each text, from its start, that are read beside the whole."""
_NOISE: Final = 1e-5
"""Relative dispersion below which float32 shows little but its own rounding."""


def first_samples(subject: kit.Subject, count: int) -> kit.Subject:
    """The same question on a few samples."""
    if subject.traced is not None:
        return replace(subject.of_samples(torch.arange(min(count, len(subject.x)))), check=None)
    _, x, token_mask, measured = replace(subject, batch_size=count, check=None).batches()[0]
    return replace(subject, x=x, token_mask=token_mask, measured=measured, check=None)


def usable(subject: kit.Subject) -> tuple[kit.Subject, tuple[str, ...]]:
    """The samples with two tokens or more that count, and a warning about the others."""
    _, counted = masks(Batch(0, subject.x, subject.token_mask, subject.measured))
    long_enough = counted.sum(-1) >= 2
    if bool(long_enough.all()):
        return subject, ()
    if not bool(long_enough.any()):
        raise InputError(
            "no sample has two tokens that count, so there is nothing to compare; give longer "
            "texts (or count special tokens)."
        )
    some = subject.of_samples(torch.nonzero(long_enough).flatten().cpu())
    left = f"{int((~long_enough).sum()):,} of {plural(len(long_enough), 'sample')}"
    return some, (f"Left out: {left}, with fewer than two tokens that count.",)


@torch.no_grad()
def width_exponents(subject: kit.Subject, measured: ModelFigures, on_step: kit.OnStep) -> Tensor:
    """By sample, the power of the number of tokens with which the relative dispersion goes.

    After the last layer, of the start of each text and more and more of it; what was ``measured``
    are these samples first, with all of their tokens. NaN for texts too short to tell, and where
    the tokens are alike up to rounding.
    """
    parts = _CONTEXTS if subject.traced is None else (*_CONTEXTS, 1.0)
    counts, sizes = [], []  # (context, sample) of each batch
    for batch, _ in kit.tracked(subject.batches(), on_step):
        real, counted = masks(batch)
        position, length = real.cumsum(-1), real.sum(-1, keepdim=True)
        read = [real & (position <= (part * length).ceil()) for part in parts]
        counts.append(torch.stack([(mask & counted).sum(-1) for mask in read]))
        sizes.append(torch.stack([_dispersion_of(subject, batch, mask, counted) for mask in read]))
    tokens, dispersion = torch.cat(counts, -1).cpu(), torch.cat(sizes, -1)
    if subject.traced is None:
        whole = slice(len(subject.x))
        tokens = torch.cat([tokens, measured.tokens[None, whole]])
        last = measured.states["relative_dispersion"][-1:, whole]
        dispersion = torch.cat([dispersion, last])
    x, y = tokens.double().clamp_min(1).log(), dispersion.clamp_min(_NOISE).log()
    x = x - x.mean(0)
    slope = (x * (y - y.mean(0))).sum(0) / x.square().sum(0).clamp_min(1e-12)
    known = (tokens[-1] >= LEAST_TOKENS) & (dispersion >= _NOISE).all(0)
    return torch.where(known, slope, torch.nan)


def _dispersion_of(subject: kit.Subject, batch: Batch, mask: Tensor, counted: Tensor) -> Tensor:
    """The relative dispersion after the last layer of the tokens that count, where only those in a
    mask are read; NaN where none counts."""
    if subject.traced is None:
        x, some = gathered(batch.x, mask)
        flags = (mask & counted).unsqueeze(-1)
        return _dispersion(subject.network(x, some), gathered(flags, mask)[0].squeeze(-1) & some)
    last = subject.traced.record(batch, shown=mask, states_only=True).states[-1]
    return _dispersion(last, _first_tokens(mask & counted, last))


def _first_tokens(mask: Tensor, x: Tensor) -> Tensor:
    """A mask without the tokens that were cut off."""
    if mask.shape[1] > x.shape[1] and bool(mask[:, x.shape[1] :].any()):
        raise InputError("its layers change the number of tokens")
    return mask[:, : x.shape[1]].to(x.device)


def _dispersion(x: Tensor, counted: Tensor) -> Tensor:
    """NaN where no token counts."""
    some = counted.any(-1)
    safe = counted | ~some.unsqueeze(-1)
    size = deviations(x, token_mask=safe).relative_dispersion().double()
    return torch.where(some, size, torch.nan).cpu()


@torch.no_grad()
def repeated_last(subject: kit.Subject) -> Tensor | None:
    """How much the last token's state changes if that token is there twice (by sample).

    Relative to its length. Small is what Barbero et al. 2024 call representational collapse; None
    if the network takes no more tokens, or there is none.
    """
    if subject.traced is not None:
        return None
    changes: list[Tensor] = []
    for batch in subject.batches():
        x, (real, _) = batch.x, masks(batch)
        rows, last = torch.arange(len(x), device=x.device), last_token(real)
        longer = torch.cat([x, torch.zeros_like(x[:, :1])], 1)
        mask = torch.cat([real, torch.zeros_like(real[:, :1])], 1)
        longer[rows, last + 1], mask[rows, last + 1] = x[rows, last], True
        try:
            once, twice = subject.network(x, real), subject.network(longer, mask)
        except RankscopeError:
            return None
        rows, last = rows.to(once.device), last.to(once.device)
        before, after = once[rows, last].double(), twice[rows, last + 1].double()
        change = (after - before).norm(dim=-1) / before.norm(dim=-1).clamp_min(1e-300)
        changes.append(change.cpu())
    return torch.cat(changes)


def random_networks(
    subject: kit.Subject, twin: kit.Subject | None, seed: int, on_step: kit.OnStep
) -> tuple[pl.DataFrame, list[str]]:
    """Random networks of the same design on the same input, by layer; and why any is missing.

    Where none can be drawn from a description, the untrained ``twin`` stands in.
    """
    columns: dict[str, list[float]] = {"layer": [], "sample": [], "metric": [], "value": []}
    frames, missing = [tables.frame({"variant": [], **columns})], []
    # Of a model that is not converted, the chapter says once why there is none.
    measures = {
        _INITIAL: partial(_initial, subject, twin, seed),
        _PREDICTED: partial(_predicted, subject, seed),
    }
    if subject.traced:
        measures.clear()
    for (name, measure), _ in kit.tracked(measures.items(), on_step):
        try:
            frames.append(measure().with_columns(pl.lit(name).alias("variant")))
        except RankscopeError as error:
            missing.append(f"{name.capitalize()}: {str(error).rstrip('.')}.")
    if len(frames) == 1 and twin is not None:
        traced = first_samples(twin, len(subject.x)).trace(_CURVES).table
        frames.append(traced.with_columns(pl.lit(_TWIN).alias("variant")))
    return tables.stack(frames), missing


def untrained(subject: kit.Subject, seed: int) -> tuple[kit.Subject | None, str]:
    """The untrained twin, embeddings and all where there are some, on the same input; or why there
    is none."""
    try:
        if subject.origin is not None:
            twin = subject.origin.fresh(seed + 1)
            twin = replace(twin, measured=subject.measured, batch_size=subject.batch_size)
            return twin, ""
        network = Network.random(drawable(subject.network), seed=seed + 1)
        return subject.with_network(network.to(subject.x.device, subject.x.dtype)), ""
    except RankscopeError as error:
        return None, str(error).rstrip(".")


def _initial(subject: kit.Subject, twin: kit.Subject | None, seed: int) -> pl.DataFrame:
    x = subject.x
    # Not the network itself, which may have been drawn with the same seed.
    if twin is not None:
        drawn = twin.network
    elif subject.twin is None:
        drawn = Network.random(drawable(subject.network), seed=seed + 1).to(x.dtype)
    else:
        drawn = subject.twin(seed + 1)
    return subject.with_network(drawn.to(x.device, x.dtype)).trace(_CURVES).table


def _predicted(subject: kit.Subject, seed: int) -> pl.DataFrame:
    subject.refuse_measured("predictions are about all tokens")
    mask = subject.token_mask
    prediction = predict(
        drawable(subject.network),
        subject.x[:_SAMPLES].float(),
        draws=_DRAWS,
        seed=seed,
        token_mask=mask if mask is None or mask.ndim < 2 else mask[:_SAMPLES],
    )
    return prediction.table.filter(pl.col("metric").is_in(["relative_dispersion", _EXPONENT]))


def beside(table: pl.DataFrame, measured: ModelFigures) -> str:
    """This model after the last layer beside the references, each on the samples it was given."""
    summary, said = tables.summary(table), []
    initial = table.filter(variant=_INITIAL, metric="relative_residual")
    drawn = "With random weights in its blocks"
    if not initial.height:
        initial = table.filter(variant=_TWIN, metric="relative_residual")
        drawn = "In its untrained twin"
    ends = initial.filter(pl.col("layer") == pl.col("layer").max())["value"]
    end = float(measured.residual[-1].quantile(0.5))
    if len(ends):
        last = float(ends.median())  # type: ignore[arg-type]
        end = float(measured.residual[-1, : len(ends)].quantile(0.5))
        if max(last, end) < thresholds.COLLAPSED_RESIDUAL:
            said.append(f"{drawn} it collapses as well.")
        else:
            samples = measured.residual.shape[-1]
            on = f" on the same {len(ends)} of {samples} samples" if len(ends) < samples else ""
            said.append(
                f"{drawn} the relative residual after the last layer is "
                f"{short(last, digits=2)}, compared with {short(end, digits=2)} here{on}."
            )
    predicted = summary.filter(variant=_PREDICTED, metric=_EXPONENT).sort("layer")
    if predicted.height:
        low, high = float(predicted["low"][-1]), float(predicted["high"][-1])
        band = " to ".join(dict.fromkeys(power_of_ten(log10) for log10 in (low, high)))
        dispersion = float(measured.states["relative_dispersion"][-1, :_SAMPLES].quantile(0.5))
        words = f"The relative dispersion predicted for random weights is {band}"
        alike = math.log10(thresholds.COLLAPSED_RESIDUAL)
        if end < thresholds.COLLAPSED_RESIDUAL and high < alike:
            said.append(f"{words}, also a collapse.")
        else:
            within = low - 1e-3 <= math.log10(max(dispersion, 1e-300)) <= high + 1e-3
            here = short(dispersion, digits=2)
            said.append(f"{words}; here it is {here}{'' if within else ', outside this range'}.")
    return " ".join(said)


def remedies(subject: kit.Subject, on_step: kit.OnStep) -> Listing:
    """The residual with other skips, norms and masks, best first; no rows if none helps.

    Nothing is trained: the figures show the effect of the structure with these weights, not how
    well such a model would work.
    """
    network, tokens = subject.network, subject.x.shape[1]
    spec = drawable(network)

    def residuals(changed: Network) -> tuple[float, float]:
        """The lowest of all layers, and that after the last."""
        traced = subject.with_network(changed).trace(["relative_residual"]).table
        by_layer = tables.summary(traced).sort("layer")["median"].to_list()
        return min(by_layer), by_layer[-1]

    before = residuals(network)
    tried = []
    for change, _ in kit.tracked(advice.changes(spec, tokens), on_step):
        changed = replace(change.spec, scores=network.spec.scores)
        try:
            after = residuals(network.with_structure(changed))
        except RankscopeError:  # it needs other weights, or does not fit this input
            continue
        if after[0] > before[0] and after[0] >= thresholds.REMEDY_FACTOR * before[0]:
            tried.append((change.words, *after))
    best = sorted(tried, key=lambda row: -row[1])[:_MOST]
    note = "Nothing was trained: to be useful, a model would have to be trained with the change."
    return Listing(
        REMEDIES,
        ("change", "lowest", "after the last layer"),
        (("unchanged", *before), *best),
        note if best else "None of the changes that were tried helps.",
    )
