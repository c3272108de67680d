"""What every result owes those who show it."""

from rankscope.results import Result


def can_be_shown(result: Result) -> None:
    """Assert that drawings name rows there are, and that nothing a page needs is missing."""
    table = result.table
    assert result.id
    assert result.title
    assert result.question.endswith("?")
    assert result.sentences
    assert all(each.endswith(".") for each in result.sentences)
    assert set(result.shown) <= set(table["metric"])
    assert result.drawings
    for drawing in result.drawings:
        rows = table
        for column, kept in drawing.only.items():
            assert set(kept) <= set(table[column]), drawing
            rows = rows.filter(rows[column].is_in(kept))
        wanted = drawing.options.get("metrics", [drawing.metric])
        assert set(wanted) <= set(rows["metric"]), drawing
        if drawing.only:
            assert set(drawing.roles) & set(rows["variant"]) or not drawing.roles, drawing


def steps_of(run, config) -> tuple[Result, list[float]]:
    """A result and the shares of the work that were told on the way, which never go back."""
    seen: list[float] = []
    result = run(config, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert all(0 < share <= 1 for share in seen)
    return result, seen
