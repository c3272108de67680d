"""What a trace found: numbers by layer, sample and metric, and where they came from."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rankscope.errors import InputError
from rankscope.tracing._recorder import Columns
from rankscope.version import versions

if TYPE_CHECKING:
    import altair
    import polars

    from rankscope.results import Result


@dataclass(frozen=True)
class Provenance:
    """Where a trace came from."""

    model: str
    spec: str | None = None
    seed: int | None = None
    versions: dict[str, str] = field(default_factory=versions)
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
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
        from rankscope import figures, tables

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
    def joined(cls, traces: Sequence[Self]) -> Self:
        """Traces of one model on several batches as one, the samples numbered on."""
        if not traces:
            raise InputError("there is no trace to join; give at least one.")
        columns: Columns = {name: [] for name in traces[0].columns}
        first = 0
        for one in traces:
            if one.columns.keys() != columns.keys():
                raise InputError("traces with and without attention metrics cannot be joined.")
            for name, values in one.columns.items():
                columns[name] += [first + s for s in values] if name == "sample" else values
            first = max(columns["sample"]) + 1
        return cls(columns, traces[0].provenance)
