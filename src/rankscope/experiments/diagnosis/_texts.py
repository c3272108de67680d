"""Distances between texts: by layer for simple vectors, and for the model's own embeddings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.core import metrics
from rankscope.core.batches import gathered
from rankscope.core.theory import thresholds
from rankscope.errors import RankscopeError
from rankscope.experiments import kit
from rankscope.experiments.diagnosis._measure import MOST_VALUES, THIS, VIEWS, ModelFigures
from rankscope.experiments.diagnosis._stages import masks
from rankscope.numerals import short
from rankscope.results import Listing
from rankscope.streams import stream

TEXTS, TEXT_SPECTRUM, EMBEDDINGS = "texts", "spectrum of texts", "embeddings"
"""Values of the column ``part``."""
VECTORS: Final = (*VIEWS, "embedding")
"""What may represent a text: a view in any layer, or after the last the model's own embedding."""
_TWIN, _NULL = "untrained twin", "unrelated vectors"
_LEAST_TOKENS: Final = 4
"""Tokens of a text below which its halves have nothing of their own."""
_TINY: Final = 1e-300


def between_texts(views: Tensor) -> dict[str, Tensor]:
    """Figures of all texts by layer from 0 and view, as if each text were a token of one sample."""
    x = views.permute(0, 1, 3, 2).flatten(0, 1).double()  # layer and view, text, feature
    spectrum = metrics.spectra(x)
    figures = {
        "relative_dispersion": metrics.deviations(x).relative_dispersion(),
        "mean_cosine": metrics.mean_cosine(x),
        "effective_rank": spectrum.effective_rank(),
        "uniformity": metrics.uniformity(x),
    }
    return {name: values.double().view(views.shape[:2]) for name, values in figures.items()}


def text_figures(measured: ModelFigures) -> dict[str, Tensor]:
    """The same by ``VECTORS``: the last column is NaN but after the last layer."""
    figures = between_texts(measured.views)
    own: Mapping[str, Tensor] = {}
    if measured.embeddings is not None:
        own = between_texts(measured.embeddings[None, None])
    for name, values in figures.items():
        column = torch.full_like(values[:, :1], torch.nan)
        if name in own:
            column[-1] = own[name][0]
        figures[name] = torch.cat([values, column], 1)
    return figures


def vectors_of(measured: ModelFigures, layer: int, vector: int) -> Tensor:
    """What represents the texts there, as (text, feature) in float64."""
    if vector < len(VIEWS):
        return measured.views[layer, vector].mT.double()
    assert measured.embeddings is not None
    return measured.embeddings.mT.double()


def text_rows(measured: ModelFigures, twin: ModelFigures | None) -> list[pl.DataFrame]:
    """Distances between texts by layer: this model's views, the twin's, and random vectors."""
    frames: list[pl.DataFrame] = []

    def add(views: Tensor, variant: str, view: int) -> None:
        for metric, values in between_texts(views).items():
            column = values[:, view].tolist()
            labels = {"part": TEXTS, "variant": variant, "metric": metric}
            frames.append(
                tables.frame(
                    {
                        "layer": list(range(len(column))),
                        "sample": [0] * len(column),
                        **{name: [label] * len(column) for name, label in labels.items()},
                        "value": column,
                    }
                )
            )

    if measured.views.shape[-1] < thresholds.LEAST_TEXTS:
        return frames
    for at, name in enumerate(VIEWS):
        add(measured.views, name, at)
    if twin is not None:
        add(twin.views, f"mean, {_TWIN}", 0)
    null = torch.randn(measured.views.shape[1:], generator=stream(0, "isotropic texts"))
    add(null.expand(measured.views.shape), _NULL, 0)
    values = text_spectrum(measured)
    layers, count = values.shape
    frames.append(
        tables.frame(
            {
                "part": [TEXT_SPECTRUM] * (layers * count),
                "layer": [layer for layer in range(layers) for _ in range(count)],
                "index": list(range(1, count + 1)) * layers,
                "sample": [0] * (layers * count),
                "metric": ["singular_value_share"] * (layers * count),
                "value": values.flatten().tolist(),
            }
        )
    )
    return frames


def text_spectrum(measured: ModelFigures) -> Tensor:
    """Singular values of the means of all texts, as shares of their sum: (layer, value)."""
    sigma = metrics.spectra(measured.views[:, 0].mT.double()).sigma
    return (sigma / sigma.sum(-1, keepdim=True).clamp_min(_TINY))[:, :MOST_VALUES]


class Embeddings(NamedTuple):
    """One vector for each text, and one for each half of those long enough: (text, feature)."""

    whole: Tensor
    first: Tensor
    second: Tensor

    def figures(self) -> dict[str, float]:
        """How far the texts are apart, and how near their halves."""
        x = self.whole
        pairs = metrics.alignment(self.first, self.second) if len(self.first) else torch.nan
        return {
            "mean_cosine": float(metrics.mean_cosine(x)),
            "effective_rank": float(metrics.effective_rank(x)),
            "uniformity": float(metrics.uniformity(x)),
            "alignment": float(pairs),
        }

    def unrelated(self) -> "Embeddings":
        """Independent random vectors of the same shapes."""
        generator = stream(0, "isotropic embeddings")
        shapes = (x.shape for x in self)
        return Embeddings(
            *(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        )

    def without(self, center: Tensor, direction: Tensor | None) -> "Embeddings":
        """The same less a vector, and less what then points in a direction of length 1."""

        def remove(x: Tensor) -> Tensor:
            x = x - center
            return x if direction is None else x - (x @ direction).unsqueeze(-1) * direction

        return Embeddings(*(remove(x) for x in self))


def split_halves(real: Tensor) -> tuple[Tensor, Tensor]:
    """Masks of the first and the second half of each text.

    The first and the last token, which may be the one that is pooled (CLS, end of text), are in
    both halves.
    """
    position, count = real.cumsum(-1), real.sum(-1, keepdim=True)
    ends = (position == 1) | (position == count)
    early = 2 * position <= count
    return real & (early | ends), real & (~early | ends)


@torch.no_grad()
def embed_texts(subject: kit.Subject, whole: Tensor | None = None) -> Embeddings:
    """Embeddings by the subject's pooling, of whole texts and of halves read without the other.

    ``whole`` are those of the first whole texts that are known.
    """
    pooling = subject.pooling
    parts: tuple[list[Tensor], ...] = ([], [], [])

    def embed(x: Tensor, mask: Tensor) -> Tensor:
        return pooling(subject.network(x, mask), mask).cpu()

    for batch in subject.batches():
        real, _ = masks(batch)
        some = slice(batch.start, batch.start + len(batch.x))
        if whole is not None and some.stop <= len(whole):
            parts[0].append(whole[some])
        else:
            parts[0].append(embed(batch.x, real))
        enough = (real.sum(-1) >= _LEAST_TOKENS).cpu()
        try:
            halves = [embed(*gathered(batch.x, half))[enough] for half in split_halves(real)]
        except RankscopeError:  # a mask under which a half sees nothing
            halves = [parts[0][-1][:0]] * 2
        parts[1].append(halves[0])
        parts[2].append(halves[1])
    return Embeddings(*(torch.cat(some) for some in parts))


@dataclass(frozen=True)
class CommonDirection:
    """What one direction has to do with texts that are alike.

    ``stages`` are the figures as they are, without the mean embedding, and without the first
    principal direction of the rest as well; ``left`` is what each leaves of the norm, and ``ranks``
    are the effective ranks of unrelated vectors after the same. ``share`` is the part of the energy
    (squared norm) that the mean has, ``first_share`` that of the first principal direction in the
    rest. ``explained`` names the stage that makes texts as different as it takes; it is empty if
    none does, or if they are not alike.
    """

    stages: tuple[dict[str, float], ...]
    left: tuple[float, ...]
    ranks: tuple[float, ...]
    share: float
    first_share: float
    explained: Literal["", "mean", "direction"]
    rounding: bool

    @property
    def alike(self) -> bool:
        """Whether there is anything to explain: a high mean cosine."""
        return self.stages[0]["mean_cosine"] >= thresholds.CONE_COSINE

    def sentence(self) -> str:
        """Whether one common direction explains why texts are alike."""
        cosine = short(self.stages[0]["mean_cosine"], digits=2)
        if not self.alike:
            return f"There is no common direction to remove: the mean cosine is {cosine}."
        has = f"the mean has {short(100 * self.share, digits=3)} % of the energy"
        at = 1 if self.explained == "mean" else 2
        ranks = (short(rank) for rank in (self.stages[at]["effective_rank"], self.ranks[at]))
        rank = "an effective rank of {} (unrelated vectors: {})".format(*ranks)
        after = f"the mean cosine is {short(self.stages[at]['mean_cosine'], digits=2)}, with {rank}"
        if self.explained == "mean":
            return f"One common direction explains it: {has}, and without it {after}."
        if self.explained == "direction":
            first = short(100 * self.first_share, digits=3)
            return (
                f"One common direction, of another size in each text, explains it: {has}, the "
                f"first principal direction {first} % of the rest, and without both {after}."
            )
        if self.rounding:
            rank = "nothing but rounding error"
        return (
            "A common direction does not explain it: without the mean and the first principal "
            f"direction, the texts have {rank}."
        )


def common_direction(embeddings: Embeddings, epsilon: float) -> CommonDirection:
    """Remove what all texts share, and measure again.

    The mean cosine of vectors without their mean is about −1/(n − 1) whatever they are, so the
    effective rank decides, compared with that of unrelated vectors after the same removal. What is
    left has to be more than the rounding error of numbers of precision ``epsilon``.
    """
    stages, first_share = _stages(embeddings)
    null, _ = _stages(embeddings.unrelated())
    figures = tuple(stage.figures() for stage in stages)
    ranks = tuple(stage.figures()["effective_rank"] for stage in null)
    size = max(float(embeddings.whole.norm()), _TINY)
    left = tuple(float(stage.whole.norm()) / size for stage in stages)
    restored = [
        part > thresholds.NOISE_EPSILONS * epsilon
        and mine["effective_rank"] >= thresholds.RESTORED_RANK * other
        for mine, other, part in zip(figures, ranks, left, strict=True)
    ]
    explained: Literal["", "mean", "direction"] = ""
    if figures[0]["mean_cosine"] >= thresholds.CONE_COSINE:
        explained = "mean" if restored[1] else "direction" if restored[2] else ""
    noise = left[2] <= thresholds.NOISE_EPSILONS * epsilon
    return CommonDirection(figures, left, ranks, 1 - left[1] ** 2, first_share, explained, noise)


def _stages(embeddings: Embeddings) -> tuple[list[Embeddings], float]:
    """As they are, without the mean, without the first principal direction of the rest as well;
    and the share that this direction has of the energy of the rest."""
    center = embeddings.whole.mean(0)
    rest = embeddings.whole - center
    _, sigma, directions = torch.linalg.svd(rest, full_matrices=False)
    share = float(sigma[0].square() / sigma.square().sum().clamp_min(_TINY))
    without = (embeddings.without(center, which) for which in (None, directions[0]))
    return [embeddings, *without], share


def vector_direction(
    measured: ModelFigures, layer: int, vector: int, epsilon: float
) -> CommonDirection:
    """The same for what represents the texts in a layer; views are stored in float32."""
    x = vectors_of(measured, layer, vector)
    precision = max(epsilon, torch.finfo(torch.float32).eps)
    return common_direction(Embeddings(x, x[:0], x[:0]), precision)


@dataclass(frozen=True)
class EmbeddingFigures:
    """Embeddings of the texts by this model and by its untrained twin, and how they are made."""

    words: str
    notes: tuple[str, ...]
    mine: Embeddings
    twin: Embeddings | None
    direction: CommonDirection

    @property
    def figures(self) -> dict[str, dict[str, float]]:
        """The figures of this model, of the twin and of unrelated vectors."""
        twin = {} if self.twin is None else {_TWIN: self.twin.figures()}
        return {THIS: self.mine.figures(), **twin, _NULL: self.mine.unrelated().figures()}

    def rows(self) -> pl.DataFrame:
        """One number a row, by variant; after the removal, by what was removed."""
        stages = zip(_REMOVED, self.direction.stages, strict=True)
        variants = {**self.figures, **{f"{THIS}, {name}": row for name, row in stages if name}}
        rows = [
            (EMBEDDINGS, variant, 0, metric, value)
            for variant, figures in variants.items()
            for metric, value in figures.items()
            if value == value
        ]
        return tables.from_rows(("part", "variant", "sample", "metric", "value"), rows)

    def sentences(self) -> tuple[str, ...]:
        """How a text becomes a vector, and whether a common direction explains likeness."""
        return (f"The embedding of a text: {self.words}.", *self.notes, self.direction.sentence())

    def listings(self) -> tuple[Listing, ...]:
        """The figures beside the references, and again without a common direction."""
        names = ("mean cosine", "effective rank", "uniformity", "alignment")
        listing = Listing(
            "Embeddings of the texts",
            ("embeddings", *names),
            tuple((name, *_shown(row)) for name, row in self.figures.items()),
            "Uniformity: 0 if all have one direction, about −4 if unrelated. Alignment: of the two "
            "halves of each text, 0 if equal, about 2 if unrelated (Wang and Isola 2020).",
        )
        if not self.direction.alike:
            return (listing,)
        stages = zip(_REMOVED, self.direction.stages, self.direction.left, strict=True)
        again = Listing(
            "Without a common direction, measured again",
            ("embeddings", *names, "norm left"),
            tuple((name or "as they are", *_shown(row), left) for name, row, left in stages),
            "The mean cosine of vectors without their mean is about −1/(n − 1) for n texts, so the "
            "effective rank decides.",
        )
        return listing, again


_REMOVED: Final = ("", "without the mean", "without the mean and the first principal direction")


def _shown(figures: Mapping[str, float]) -> tuple[float | None, ...]:
    return tuple(value if value == value else None for value in figures.values())


def embedding_figures(
    subject: kit.Subject,
    twin: kit.Subject | None,
    measured: ModelFigures | None = None,
    fresh: ModelFigures | None = None,
) -> EmbeddingFigures | None:
    """Embed the texts with the model and its twin; None for too few texts, or without a network.

    What was ``measured`` of the model, and ``fresh`` of the twin, may have embeddings of the first
    texts already.
    """
    if len(subject.x) < thresholds.LEAST_TEXTS or subject.traced is not None:
        return None
    pooling = subject.pooling

    def known(figures: ModelFigures | None) -> Tensor | None:
        return None if figures is None or figures.embeddings is None else figures.embeddings.mT

    mine = embed_texts(subject, known(measured))
    drawn = None if twin is None else embed_texts(twin, known(fresh))
    direction = common_direction(mine, torch.finfo(subject.x.dtype).eps)
    return EmbeddingFigures(pooling.words, pooling.notes, mine, drawn, direction)
