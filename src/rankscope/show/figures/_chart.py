"""The chart every figure is: Altair's, but neither its files nor notebooks ask any network."""

from pathlib import Path
from typing import Any

import altair as alt

from rankscope.show.figures._offline import svg
from rankscope.show.figures._saving import FORMATS, printable, save


class OfflineChart(alt.ConcatChart):
    """Panels side by side. ``save`` writes pages that work offline, notebooks show a picture."""

    def save(self, fp: Any, *arguments: Any, **options: Any) -> None:
        """Write the chart, by the path's suffix; what else Altair can write is left to it."""
        kind = Path(fp).suffix.lower() if isinstance(fp, str | Path) else ""
        if kind in FORMATS and not arguments and not options:
            save(self, fp)
            return
        if "html" in (kind.removeprefix("."), options.get("format"), *arguments[:1]):
            options = {"inline": True, **options}
        super().save(fp, *arguments, **options)

    def _repr_mimebundle_(self, *_: Any, **__: Any) -> dict[str, str]:
        """A picture: Altair's own way loads Vega from elsewhere."""
        return {"image/svg+xml": svg(printable(self.to_dict())), "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"OfflineChart of {len(self.concat)} panels; .save('chart.html') writes a page"
