"""``write``: a result as files."""

from collections.abc import Callable
from pathlib import Path

from rankscope import records
from rankscope.arguments import checked
from rankscope.results import Result
from rankscope.show.figures import labelled, save
from rankscope.show.report._compose import page
from rankscope.show.report._html import write_html


@checked
def write(
    result: Result, folder: str | Path, *, on_step: Callable[[float], None] = lambda _: None
) -> dict[str, str]:
    """Write a result's table, charts and page; what each file is, and where.

    >>> from rankscope.experiments import run
    >>> write(run("D8"), "out")
    {'table': 'out/d8-....parquet', 'chart': 'out/d8-....png', 'report': 'out/d8-....html'}

    The table is Parquet with the whole result inside (``rankscope.records``), each chart a PNG, and
    the page one HTML file that needs nothing else. ``on_step`` is told the share of the work that
    is done.
    """
    files = names(result, folder)
    records.write(result, files["table"])
    document = page(result)
    # The very charts of the page: to draw one takes long.
    charts = document.charts
    pictures = [path for what, path in files.items() if what.startswith("chart")]
    for number, (chart, path) in enumerate(zip(charts, pictures, strict=True), start=1):
        on_step(number / (len(charts) + 2))
        save(labelled(chart.spec, chart.title, result.title), path)
    on_step(1 - 1 / (len(charts) + 2))
    write_html(document, files["report"])
    on_step(1.0)
    return files


def names(result: Result, folder: str | Path) -> dict[str, str]:
    """What each file of a result is, and where ``write`` puts it."""
    stem = Path(folder) / result.stem
    numbers = range(1, len(result.all_drawings) + 1)
    counted = ["" if number == 1 else f"-{number}" for number in numbers]
    charts = {f"chart{which}": f"{stem}{which}.png" for which in counted}
    return {"table": f"{stem}.parquet", **charts, "report": f"{stem}.html"}
