"""``Tabular``: what every object that rankscope returns can do, given its table."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from rankscope.arguments import checked
from rankscope.core.packing import pack_record, unpack_record
from rankscope.errors import InputError
from rankscope.numerals import MOST_ROWS, short
from rankscope.process import require, versions

if TYPE_CHECKING:
    import polars

    from rankscope.show import figures

_KEY: Final = "rankscope.object"
_IN_FILE: Final = ("table", "columns", "provenance")
"""Fields that a file holds as its table and its provenance, not once more as JSON."""


@checked
class Tabular:
    """A chart, a file, a pandas frame and a notebook display, all from ``table``.

    A dataclass of ours that is returned to users has this as a parent and states its ``table``;
    and its own ``plot`` where the table is not drawn layer by layer.
    """

    if TYPE_CHECKING:

        @property
        def table(self) -> polars.DataFrame: ...

    def plot(self, metric: str | None = None) -> "figures.Figure":
        """Each metric against the layer, or one ``metric``: medians, and the 10 to 90 % band."""
        from rankscope import tables
        from rankscope.show import figures

        return figures.by_layer(tables.summary(self.table), metrics=metric)

    def to_pandas(self) -> Any:
        """The table as a pandas frame; pandas has to be installed."""
        return require("pandas").DataFrame(self.table.to_dict(as_series=False))

    def save(self, path: str | Path) -> Path:
        """Write the table as Parquet, with the rest of the object inside the file."""
        from rankscope import tables

        packed = json.dumps(pack_record(type(self), self._kept()), allow_nan=False)
        return tables.write(self.table, path, self._origin(), {_KEY: packed})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what ``save`` wrote."""
        from rankscope import tables

        table, written = tables.from_parquet(path)
        name = _class_name(written)
        if name != cls.__name__:
            what = f"a {name}" if name else "a table without an object of rankscope"
            raise InputError(f"{path} holds {what}, expected a {cls.__name__}; load another file.")
        try:
            kind, values = unpack_record(json.loads(written[_KEY]))
            if kind is not cls:
                raise TypeError(f"{kind} is another class of that name")
            return cls._restored(values, table, json.loads(written[tables.PROVENANCE]))
        except (LookupError, ArithmeticError, AttributeError, RuntimeError, TypeError, ValueError):
            raise InputError(
                f"{path} holds a {name} that cannot be read; load another file, or save it again "
                "with this version of rankscope."
            ) from None

    def _repr_html_(self) -> str:
        """For notebooks: the short text, and the first rows of the table."""
        from rankscope.show import display

        table = self.table
        rows = [
            [short(cell) if isinstance(cell, float) else cell for cell in row]
            for row in table.head(MOST_ROWS).rows()
        ]
        more = f"The first {len(rows)} of {table.height:,} rows." * (len(rows) < table.height)
        below = [display.paragraph(more)] if more else []
        return display.card(repr(self), display.table(table.columns, rows), *below)

    def _kept(self) -> dict[str, Any]:
        """The fields that are saved beside the table."""
        names = [field.name for field in fields(self) if field.name not in _IN_FILE]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names}

    def _origin(self) -> Mapping[str, Any]:
        """The provenance that is written into the file."""
        origin: Mapping[str, Any] = getattr(self, "provenance", {"versions": versions()})
        return origin

    @classmethod
    def _restored(
        cls, values: dict[str, Any], table: "polars.DataFrame", origin: Mapping[str, Any]
    ) -> Self:
        """The object that a file holds."""
        from_file = {
            "table": table,
            "columns": table.to_dict(as_series=False),
            "provenance": origin,
        }
        names = [field.name for field in fields(cls) if field.name in from_file]  # type: ignore[arg-type]
        return cls(**values, **{name: from_file[name] for name in names})


def _class_name(written: Mapping[str, str]) -> str:
    """The class of what a file holds, by its metadata; nothing if that is none."""
    try:
        return str(json.loads(written[_KEY])["class"].rpartition(":")[2])
    except (LookupError, AttributeError, RecursionError, TypeError, ValueError):
        return ""


def plot_along(
    table: "polars.DataFrame", column: str, words: str, metric: str | None
) -> "figures.Figure":
    """One metric, the table's first unless another is named, against a column of numbers."""
    from rankscope import tables
    from rankscope.show import figures

    rows = table.filter(table[column].is_not_null()).rename({column: "setting"})
    if not rows.height:
        raise InputError(f"there is nothing to draw: the table has no row with a {column}.")
    summary = tables.summary(tables.joined({words: rows}, column="parameter"))
    return figures.by_setting(summary, metric=metric or str(rows["metric"][0]))
