"""One grammar for the API (docs/api.md), read off every public signature."""

import inspect
import re
from pathlib import Path

import pytest

import rankscope

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
ABOUT_A_MODEL = (
    *("trace", "deep_trace", "bounds", "path_lengths", "head_shares", "top_paths", "path_output"),
    *("path_matrix", "truncate", "activations", "predict", "diagnose", "advise"),
)
FUNCTIONS = {
    name: thing
    for name in rankscope.__all__
    if inspect.isfunction(thing := getattr(rankscope, name))
}
SECOND = {"activations": "names", "path_output": "path", "path_matrix": "path"}
"""What else may be given by position."""


@pytest.mark.parametrize("name", ABOUT_A_MODEL)
def test_a_model_and_its_inputs_come_first_and_the_rest_by_keyword(name: str) -> None:
    first, second, *rest = inspect.signature(FUNCTIONS[name]).parameters.values()
    assert (first.name, second.name) == ("model", "inputs")
    by_place = [each.name for each in rest if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert by_place == ([SECOND[name]] if name in SECOND else [])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_options_have_one_word_each(name: str) -> None:
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    other_words = {"texts", "ids", "network", "x", "passages", "trained", "on_layer", "on_batch"}
    if name in ("design_values", "find_equilibria", "residual"):  # of networks and states alone
        other_words -= {"network", "x"}
    if name == "reproduce":
        other_words -= {"ids"}  # of claims
    assert not other_words & {*parameters}
    for option in ("token_mask", "measured", "seed", "on_step", "length", "samples", "at_init"):
        if option in parameters:
            assert parameters[option].kind is inspect.Parameter.KEYWORD_ONLY, option


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_call_returns_one_type(name: str) -> None:
    annotation = inspect.signature(FUNCTIONS[name]).return_annotation
    assert annotation not in (inspect.Signature.empty, None, "Any")
    if name != "residual":  # a tensor, or one with its certificate
        assert " | None" not in str(annotation)


def test_the_page_names_every_call_about_a_model() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in (*ABOUT_A_MODEL, "compare", "design_values"):
        assert f"`{name}`" in page or f"rankscope.{name}(" in page


def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(compile(example, str(PAGE), "exec"), {})
    assert "['layers.0.norm2', 'layers.1.norm2', 'layers.2.norm2']" in capsys.readouterr().out
