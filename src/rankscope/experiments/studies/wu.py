"""The figure of Wu et al. 2024: dispersion against depth, four masks × four sets of parts."""

import math
from dataclasses import dataclass

import polars as pl

from rankscope import tables
from rankscope.ask import Model, by_name, read_model, refuse_unfit
from rankscope.core.network import Network, Spec
from rankscope.core.theory import UNEVEN, Law, thresholds
from rankscope.errors import InputError
from rankscope.experiments import depths, kit
from rankscope.models.text import embed, passages
from rankscope.numerals import plural, power_of_ten, short

ENTRY = kit.study(
    "wu",
    "Masks and LayerNorm, layer by layer",
    source="Wu et al. 2024, figure 2",
    question="Which masks and which parts keep the tokens apart, and for how long?",
    options=("seed", "models", "texts", "length"),
    seconds=50,
)
_BERT_WIDTH, _BERT_STD = 768, 0.02
_LOWEST = -20.0  # where charts are cut: float64 cannot distinguish tokens this close
CHARTS = tuple(
    kit.Drawing(
        "by_depth", f"Straight curves are exponential. {words}", metric, {"lowest": _LOWEST}
    )
    for metric, words in {
        depths.DISPERSION: "Where a curve leaves the panel, tokens continue to become alike.",
        depths.RELATIVE_DISPERSION: "Relative to the tokens' norm.",
    }.items()
)


@dataclass(frozen=True)
class Config(kit.Config):
    """A random network in the shape of BERT, small enough for a laptop, and loaded models.

    ``width`` other than BERT's 768 changes the standard deviation of the weights, so that products
    of them are as large as in BERT. A loaded model is run again and again with the same weights, as
    many whole times as fit into ``depth``; ``texts`` (one passage unless given) and ``length`` are
    for those. ``parts`` says under each name what is left out.
    """

    depth: int = 128
    width: int = 128
    heads: int = 4
    tokens: int = 64
    samples: int = 2
    window: int = 4
    parts: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("pure attention", ("skip", "mlp", "norm")),
        ("+ LayerNorm", ("skip", "mlp")),
        ("+ LayerNorm + skip", ("mlp",)),
        ("everything", ()),
    )
    models: tuple[Model, ...] = ()
    texts: tuple[str, ...] | None = None
    length: int = 32

    @property
    def masks(self) -> dict[str, str]:
        """The four masks of the figure, under the names they have there."""
        return {
            "full": "full",
            "causal": "causal",
            "sliding window": f"window:{self.window}",
            "causal sliding window": f"causal-window:{self.window}",
        }


def measure(config: Config, on_step: kit.OnStep) -> depths.Measured:
    """μ of every layer in scaled arithmetic, for a random BERT shape and for loaded models."""
    if config.depth < 1:
        raise InputError(f"depth={config.depth} is out of range; expected 1 or more layers.")
    parts: dict[str, pl.DataFrame] = {}
    notes: dict[str, str] = {}
    loaded = by_name(config.models) if config.models else {}
    for (title, case), on_subject in kit.tracked([("", None), *loaded.items()], on_step):
        subject = _loaded_subject(config, title, case) if case else random_subject(config)
        for (name, left_out), on_part in kit.tracked(config.parts, on_subject):
            label = f"{subject.name}: {name}"
            bare = subject.network.without(*left_out)
            masked = {mask: bare.with_mask(written) for mask, written in config.masks.items()}
            compared = depths.compare(
                masked, subject.x, subject.token_mask, norm="fro", on_step=on_part
            )
            wanted = pl.col("metric").is_in(["log10_residual", depths.RELATIVE])
            parts[label] = depths.dispersions(compared.table.filter(wanted))
            notes |= {f"{label}, {mask}": note for mask, note in compared.notes.items()}
    network = (
        f"{config.heads} heads, width {config.width}, post-layer norm, MLP of four times the "
        f"width, normal init of standard deviation {short(_deviation(config))}, {config.depth} "
        f"layers; {config.samples} passages of {config.tokens} tokens"
    )
    return depths.Measured(
        tables.joined(parts, column="model"),
        notes,
        about={"network": network, "dispersion": "Frobenius norm"},
    )


def judge(_: Config, measured: depths.Measured) -> kit.Answer:
    """For each set of parts, the last μ under each mask, and its law."""
    summary = tables.summary(measured.table)
    sentences, listings = [], []
    for model in summary["model"].unique(maintain_order=True).to_list():
        rows, relative = [], {}
        for mask in summary.filter(model=model)["variant"].unique(maintain_order=True).to_list():
            curves = [
                depths.medians(summary, metric, model=model, variant=mask)
                for metric in (depths.DISPERSION, depths.RELATIVE_DISPERSION)
            ]
            law = depths.law_of_medians(
                summary, depths.RELATIVE_DISPERSION, UNEVEN, model=model, variant=mask
            )
            layers, relative[mask] = len(curves[0]) - 1, curves[1][-1]
            rows.append((mask, *(power_of_ten(curve[-1]) for curve in curves), _course(law)))
        alike = sum(end < math.log10(thresholds.COLLAPSED_RESIDUAL) for end in relative.values())
        most = max(relative, key=relative.__getitem__)
        sentences.append(
            f"{model}: after {plural(layers, 'layer')} tokens differ by less than a "
            f"thousandth of their size under {alike} of {plural(len(relative), 'mask')}, and most "
            f"under {most}, by {power_of_ten(relative[most])} of it."
        )
        columns = ("mask", "μ in the end", "of the tokens' size", "course")
        listings.append(kit.Listing(model, columns, tuple(rows)))
    return kit.Answer(sentences, listings=tuple(listings), shown=(depths.RELATIVE_DISPERSION,))


def random_subject(config: Config) -> kit.Subject:
    """A network with the requested number of layers, and bundled passages."""
    spec = Spec(
        config.depth,
        config.heads,
        config.width,
        norm_place="post",
        norm_eps=1e-12,
        init=_deviation(config),
    )
    x, token_mask = embed(
        passages()[: config.samples], config.width, length=config.tokens, seed=config.seed
    )
    network = Network.random(spec, seed=config.seed)
    return kit.Subject(network, x, token_mask, title="BERT shape (init)")


def _deviation(config: Config) -> float:
    return _BERT_STD * math.sqrt(_BERT_WIDTH / config.width)


def _loaded_subject(config: Config, name: str, case: Model) -> kit.Subject:
    loaded = case.load(seed=config.seed)
    read, check = read_model(loaded, config.texts, length=config.length, seed=config.seed)
    refuse_unfit(name, check)
    network = loaded.network
    repeated = network.repeat(max(1, config.depth // network.spec.layers))
    return kit.Subject(repeated, read.x, read.token_mask, title=name)


def _course(law: Law) -> str:
    """The law where it is beyond doubt; otherwise the factor alone, for one network's residual goes
    up and down too much to distinguish a slow collapse from none."""
    if law.sure_to is not None:
        return f"in doubt from layer {law.sure_to + 1} on"
    if law.kind in ("doubly exponential", "equal"):
        return law.kind
    if law.kind == "undecided":
        return "too few layers to see a law"
    return f"× {power_of_ten(law.rate, digits=3)} a layer over the second half"
