"""Chained attention tends to rank one where tokens mix, and not where they do not."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rankscope import tables
from rankscope.core.paths import Path, chained_matrices
from rankscope.core.theory import Law
from rankscope.experiments import kit
from rankscope.experiments.claims import d9
from rankscope.process.progress import silent

from ..made import Made
from .small import DEEP, TINY, _deep_bert, tiny


class Inward(Made):
    """Every token attends to itself alone: nothing is ever mixed."""

    def load(self, *, seed: int = 0):
        loaded = super().load(seed=seed)
        return replace(loaded, network=loaded.network.with_mask("window:0"))


INWARD = Inward("inward", make=_deep_bert)


def test_it_fails_where_no_token_looks_at_another() -> None:
    config = TINY["d9"][1]
    assert d9.ENTRY.run(replace(config, models=(INWARD,)), silent).verdict == "fails"
    both = d9.ENTRY.run(replace(config, models=(DEEP, INWARD)), silent)
    assert both.verdict == "depends"
    assert "supported for bert (init); not for inward (init)" in both.judgement.on


def test_every_path_text_and_depth_is_in_the_table() -> None:
    found, _ = tiny("d9")
    assert len(found.table) == 3 * 12 * 2  # paths, depths, metrics
    (rate,) = found.key_figures.values()
    assert rate < -0.5


def judged(law: Law, promised: float, family: str, monkeypatch) -> kit.Result:
    """What a model comes to whose figures follow a law, and whose coefficients promise another."""
    monkeypatch.setattr(d9, "law", lambda _: law)
    rows = [("a", layer, 0, "dobrushin", 10**promised) for layer in (1, 2)]
    table = tables.from_rows(("model", "layer", "sample", "metric", "value"), rows)
    return kit.conclude(d9.ENTRY, TINY["d9"][1], kit.Measured(table, facts={"a": family}))


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("exponential", "holds"),
        ("doubly exponential", "holds"),
        ("between", "holds"),
        ("equal", "holds"),
        ("none", "fails"),
        ("undecided", "not tried"),
    ],
)
def test_the_law_decides(kind, verdict: str, monkeypatch) -> None:
    found = judged(Law(kind, 1.0, -1.0, -9.0), -0.5, "BERT", monkeypatch)
    assert (found.verdict, found.beyond) == (verdict, None)
    found = judged(Law("none", 1.0, 0.0, 0.0), 0.0, "Llama", monkeypatch)
    assert (found.verdict, found.beyond.verdict) == ("not tried", "fails")


def test_what_is_chained_is_the_product_as_far_as_that_can_be_seen() -> None:
    subject = DEEP.subject(TINY["d9"][1]).to(torch.float64)
    path = Path((0, 1, 2) * 4)
    patterns = d9._patterns(subject)
    exact = [
        values
        for _, metric, values in d9.chain(patterns, path, subject.token_mask)
        if metric == "log10_rank_one_residual"
    ]
    plain = chained_matrices(subject.network, subject.x, path, token_mask=subject.token_mask)
    seen = 0
    for matrix, found in zip(plain, exact, strict=True):
        for sample, real in enumerate(subject.token_mask):
            kept = matrix[sample][real][:, real].double().numpy()
            u, values, v = np.linalg.svd(kept)
            rest = kept - values[0] * np.outer(u[:, 0], v[0])
            value = composite(rest) / composite(kept)
            if value > 1e-9:
                seen += 1
                assert float(found[sample]) == pytest.approx(math.log10(value), abs=2e-5)
    assert seen > 8


def composite(matrix: np.ndarray) -> float:
    return math.sqrt(np.linalg.norm(matrix, 1) * np.linalg.norm(matrix, np.inf))


def test_a_chain_far_below_the_number_format_goes_on_at_its_rate() -> None:
    """Of one matrix, powers fall by its second eigenvalue: 0.1 for this one, by hand."""
    step = torch.tensor([[0.55, 0.45], [0.45, 0.55]], dtype=torch.float64)
    patterns = [step.view(1, 1, 2, 2)] * 400
    values = [
        float(found)
        for _, metric, found in d9.chain(patterns, Path((0,) * 400), None)
        if metric == "log10_rank_one_residual"
    ]
    # P^k − ½11ᵀ = ½ 0.1^k (1, −1; −1, 1), whose norm is 0.1^k times that of P^k, which is 1.
    assert values == pytest.approx([-float(k) for k in range(1, 401)], rel=1e-12)


def test_no_path_is_refused() -> None:
    with pytest.raises(Exception, match="paths=0 is out of range"):
        d9.ENTRY.run(replace(TINY["d9"][1], paths=0), silent)
