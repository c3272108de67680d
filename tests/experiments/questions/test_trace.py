"""Every layer of one network."""

import pytest
import torch

from rankscope.ask import Subject
from rankscope.core.network import Network, Spec
from rankscope.core.tracing import trace
from rankscope.errors import InputError
from rankscope.experiments.questions.trace import Config, run
from rankscope.numerals import course

from ..shown import can_be_shown, steps_of

NETWORK = Network.random(Spec(3, 2, 8), dtype=torch.float64)


def test_it_is_a_trace_with_a_sentence(tokens) -> None:
    x = tokens(3, 5, 8)
    found, seen = steps_of(run, Config(Subject(NETWORK, x, title="mine", batch_size=2)))
    assert seen == [0.5, 1.0]
    can_be_shown(found)
    assert (found.id, found.title) == ("trace", "mine")
    assert found.stem.startswith("trace-")
    plain = trace(NETWORK, x).table
    keys = ["layer", "sample", "metric"]
    assert found.table.sort(keys)["value"].to_list() == pytest.approx(
        plain.sort(keys)["value"].to_list()
    )
    means = found.summary.filter(metric="relative_residual").sort("layer")["mean"]
    assert found.sentences == (
        f"The relative residual {course(means[0], means[3])} over 3 layers (means over the "
        "samples).",
    )
    assert found.provenance["config"]["metrics"][0] == "relative_residual"


def test_other_metrics_have_no_sentence_yet(tokens) -> None:
    found, _ = steps_of(run, Config(Subject(NETWORK, tokens(1, 5, 8)), ("dobrushin",)))
    assert found.sentences == ()
    assert set(found.table["metric"]) == {"dobrushin"}
    assert found.provenance["config"]["metrics"] == ["dobrushin"]


def test_tokens_are_left_out_or_the_question_is_refused(tokens) -> None:
    x = tokens(2, 5, 8)
    measured = torch.tensor([[False, True, True, True, True]] * 2)
    subject = Subject(NETWORK, x, measured=measured)
    found, _ = steps_of(run, Config(subject, ("mean_cosine",)))
    plain = trace(NETWORK, x, metrics=["mean_cosine"], measured=measured).table
    assert found.table["value"].to_list() == pytest.approx(plain["value"].to_list())
    with pytest.raises(InputError, match=r"attention is between all tokens \(attention_entropy\)"):
        run(Config(subject, ("mean_cosine", "attention_entropy")), lambda _: None)


def test_an_unknown_metric_is_found_before_any_work(tokens) -> None:
    with pytest.raises(InputError, match="unknown metric 'beauty'"):
        run(Config(Subject(NETWORK, tokens(1, 5, 8)), ("beauty",)), lambda _: 1 / 0)
