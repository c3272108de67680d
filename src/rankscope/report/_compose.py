"""``page``: a result → what its page consists of; nothing is computed here."""

from collections.abc import Sequence
from typing import Final

from rankscope.arguments import checked
from rankscope.figures import draw, headings, reading
from rankscope.metric_catalogue import metric
from rankscope.numerals import sentence_case
from rankscope.report._document import Report, Section
from rankscope.report._grids import METRIC, Grid, grids
from rankscope.report._prose import sentences
from rankscope.report._provenance import in_words
from rankscope.results import Judgement, Result

_MOST_COLUMNS: Final = 6


@checked
def page(result: Result) -> Report:
    """The page for a result: its verdict, what was found, its charts, their figures, its origin.

    >>> from rankscope.experiments import run
    >>> page(run("D8")).title
    'Most paths of well-known transformers are long: about L·H/(H+1) of L layers.'
    """
    return Report(
        title=result.title,
        lead=result.question if result.question != result.title else "",
        verdicts=[(each.kind, each.sentence, each.fate) for each in result.findings],
        sections=[*_found(sentences(result)), *_charts(result), *_tables(result)],
        provenance=in_words(result.provenance),
        overline=f"{result.id} · {result.source}" if result.source else "",
        answers=_answers(result),
        key_figures=result.key_figures,
    )


def _answers(result: Result) -> dict[str, Judgement]:
    judged = {"Stated for": result.judgement, "Beyond it": result.beyond}
    return {f"{where}: {one.domain}": one for where, one in judged.items() if one is not None}


def _found(said: Sequence[str]) -> list[Section]:
    if not said:
        return []
    # One is a paragraph, several are a list.
    text = said[0] if len(said) == 1 else "\n".join(f"- {each}" for each in said)
    return [Section("What was found", text)]


def _charts(result: Result) -> list[Section]:
    return [
        Section(heading, f"{drawing.caption} {reading(drawing)}".strip(), draw(drawing, result))
        for heading, drawing in zip(headings(result.drawings), result.drawings, strict=True)
    ]


def _tables(result: Result) -> list[Section]:
    return [
        Section(_heading(grid), _note(grid), None, grid.few(_MOST_COLUMNS))
        for grid in grids(result)
    ]


def _heading(grid: Grid) -> str:
    what = metric(grid.metrics[0]).title if len(grid.metrics) == 1 else ""
    if grid.place == METRIC:
        return f"{what or 'Overall'}, in figures"
    return f"{what or 'All metrics'} by {grid.place}, in figures"


def _note(grid: Grid) -> str:
    words = [f"{grid.statistic}s over the samples"] if grid.statistic else []
    words += ["after the last layer"] if grid.last_layer else []
    text = ", ".join(words)
    return f"{sentence_case(text)}." if text else ""
