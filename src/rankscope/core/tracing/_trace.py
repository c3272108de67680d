"""What a trace found: numbers by layer, sample and metric, and where they came from."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rankscope.arguments import checked
from rankscope.core.tracing._provenance import Provenance
from rankscope.core.tracing._recorder import Columns
from rankscope.display import card, cut, list_words, mean, paragraph, some, span, table
from rankscope.errors import InputError
from rankscope.numerals import short

if TYPE_CHECKING:
    import altair
    import polars

    from rankscope.results import Result


@checked
@dataclass(frozen=True, repr=False)
class Trace:
    """Numbers by layer, sample and metric, and where they came from."""

    columns: Columns
    provenance: Provenance

    @property
    def table(self) -> "polars.DataFrame":
        """The numbers as a polars frame: layer, sample, metric, value (and head, if it applies)."""
        from rankscope import tables

        return tables.frame(self.columns)

    def plot(self) -> "altair.ConcatChart":
        """Each metric against the layer: the mean over samples in a band of 10 to 90 per cent."""
        from rankscope import tables
        from rankscope.show import figures

        return figures.by_layer(tables.summary(self.table))

    @property
    def result(self) -> "Result":
        """The trace as what everything measured ends in; it can be written, drawn and printed."""
        from rankscope.results import Drawing, Result

        metrics = list(dict.fromkeys(self.columns["metric"]))
        return Result(
            id="trace",
            title=self.provenance.model,
            question="What do the tokens look like after each layer?",
            sentences=(),
            table=self.table,
            provenance=asdict(self.provenance),
            drawings=(Drawing("by_layer", options={"metrics": metrics}),),
        )

    def __repr__(self) -> str:
        seed = "" if self.provenance.seed is None else f", seed {self.provenance.seed}"
        doubt = f"; {self._doubt}" if self._doubt else ""
        metrics = list_words(list(dict.fromkeys(map(str, self.columns["metric"]))))
        return (
            f"Trace of {cut(self.provenance.model)}{seed}: layers {span(self.columns['layer'])}, "
            f"samples {span(self.columns['sample'])}; {metrics}{doubt}"
        )

    @property
    def _doubt(self) -> str:
        """From which layer on figures of which samples are in doubt; nothing if none is."""
        doubts = self.columns.get("doubt", ())
        if not any(doubts):
            return ""
        layers, samples = (
            [at for at, doubt in zip(self.columns[name], doubts, strict=True) if doubt]
            for name in ("layer", "sample")
        )
        named = list_words([str(sample) for sample in sorted(set(samples))])
        return f"in doubt from layer {min(layers)} on (samples {named})"

    def _repr_html_(self) -> str:
        """The mean of each metric over samples and heads, layer by layer."""
        values: dict[tuple[int, str], list[float]] = defaultdict(list)
        for layer, metric, value in zip(
            *(self.columns[name] for name in ("layer", "metric", "value")), strict=True
        ):
            values[layer, metric].append(value)
        layers = sorted({layer for layer, _ in values})
        metrics = list(dict.fromkeys(metric for _, metric in values))
        rows = [
            [str(layer), *(short(mean(values.get((layer, name), []))) for name in metrics)]
            for layer in some(layers)
        ]
        title = f"Trace of {self.provenance.model}"
        about = paragraph(self.provenance.network) if self.provenance.network else ""
        doubt = paragraph(f"Figures are {self._doubt}.") if self._doubt else ""
        return card(title, about, table(["layer", *metrics], rows), doubt)

    def noted(self, notes: Mapping[str, str]) -> "Trace":
        """The same trace with notes on where it came from."""
        origin = replace(self.provenance, notes={**self.provenance.notes, **notes})
        return replace(self, provenance=origin)

    def save(self, path: str | Path) -> Path:
        """Write the table as Parquet with its provenance inside the file."""
        from rankscope import tables

        return tables.write(self.table, path, asdict(self.provenance))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what ``save`` wrote."""
        from rankscope import tables

        table, provenance = tables.read(path)
        try:
            origin = Provenance(**provenance)
        except TypeError:
            raise InputError(f"{path} holds another kind of table, not a trace.") from None
        return cls(table.to_dict(as_series=False), origin)

    @classmethod
    def joined(cls, traces: Sequence[Self], *, of_draws: bool = False) -> Self:
        """Traces of one model on several batches as one, the samples numbered on.

        What only some of them note, or note differently, is kept of each. ``of_draws`` joins those
        of several networks that were drawn alike, each with samples of its own.
        """
        if not traces:
            raise InputError("there is no trace to join; give at least one.")
        every = [one.columns for one in traces]
        if any("doubt" in each for each in every):  # what says nothing of doubts has none
            every = [
                {**each, "doubt": each.get("doubt", [False] * len(each["value"]))} for each in every
            ]
        columns: Columns = {name: [] for name in every[0]}
        first = 0
        for each in every:
            if each.keys() != columns.keys():
                raise InputError("traces with and without attention metrics cannot be joined.")
            for name, values in each.items():
                columns[name] += [first + s for s in values] if name == "sample" else values
            first = max(columns["sample"]) + 1
        return cls(
            columns, Provenance.joined([one.provenance for one in traces], of_draws=of_draws)
        )
