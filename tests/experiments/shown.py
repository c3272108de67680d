"""What every result owes those who show it."""

from rankscope.results import Judgement, Result
from rankscope.show import figures


def can_be_shown(result: Result) -> None:
    """Assert that every drawing can be drawn, and that nothing a page needs is missing."""
    assert result.id
    assert result.title
    assert result.question.endswith("?")
    assert result.sentences
    assert all(each.endswith(".") for each in result.sentences)
    assert set(result.shown) <= set(result.table["metric"])
    assert result.all_drawings
    for drawing in result.all_drawings:
        figures.draw(drawing, result)
        for column, kept in drawing.only.items():
            assert set(kept) <= set(result.table[column]), drawing
        if drawing.roles:
            assert set(drawing.roles) <= set(result.table["variant"]), drawing


def steps_of(run, config) -> tuple[Result, list[float]]:
    """A result and the shares of the work that were told on the way, which never go back."""
    seen: list[float] = []
    result = run(config, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert all(0 < share <= 1 for share in seen)
    return result, seen


def reads(judgement: Judgement | None, words: str) -> bool:
    """Whether a verdict begins with these words; "Supported" alone means in every case."""
    if words == "Supported" and (judgement is None or judgement.verdict != "holds"):
        return False
    return str(judgement).startswith(words)
