"""``write``: a result as files."""

from collections.abc import Callable
from pathlib import Path

from rankscope import records
from rankscope.arguments import checked
from rankscope.figures import save
from rankscope.report._compose import page
from rankscope.report._html import write_html
from rankscope.results import Result


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
    stem = Path(folder) / result.stem
    files = {"table": records.write(result, f"{stem}.parquet")}
    document = page(result)
    # The very charts of the page: to draw one takes long.
    charts = [section.chart for section in document.sections if section.chart is not None]
    for number, chart in enumerate(charts, start=1):
        on_step(number / (len(charts) + 2))
        which = "" if number == 1 else f"-{number}"
        files[f"chart{which}"] = save(chart, f"{stem}{which}.png")
    on_step(1 - 1 / (len(charts) + 2))
    files["report"] = write_html(document, f"{stem}.html")
    on_step(1.0)
    return {what: str(path) for what, path in files.items()}
