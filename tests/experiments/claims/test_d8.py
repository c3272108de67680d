"""Path counts of well-known architectures, and wrong ones."""

import pytest

from rankscope.experiments.claims import d8
from rankscope.paths import PathCounts

from .small import tiny


def test_d8_counts_the_papers_architectures() -> None:
    found, _ = tiny("d8")
    gpt3 = found.table.filter(model="GPT-3 (96, 96)")
    assert len(gpt3) == 97
    assert gpt3["value"].sum() == pytest.approx(1.0)
    assert gpt3.sort("value")["length"][-1] == 95  # 96 · 96/97 on average
    assert len(found.sentences) == 9
    assert "mean length 95.01" in found.sentences[-1]


def test_d8_notices_a_lost_path_and_a_wrong_mean() -> None:
    class Lost(PathCounts):
        total = property(lambda self: sum(self.counts) - 1)  # type: ignore[assignment]

    class Short(PathCounts):
        counts = property(lambda _: (9, 6, 1))  # type: ignore[assignment]

    assert d8.as_stated(PathCounts(2, 3))
    assert not d8.as_stated(Lost(2, 3))
    assert not d8.as_stated(Short(2, 3))
