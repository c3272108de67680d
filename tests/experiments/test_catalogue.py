"""What is listed is there, takes the options it lists, and is named by all it depends on."""

import json
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rankscope import tables
from rankscope.ask import PARTS, Model
from rankscope.errors import InputError
from rankscope.experiments.catalogue import (
    CATALOGUE,
    ENTRIES,
    Entry,
    entries,
    entry,
    read_entry,
    run,
)
from rankscope.experiments.config import Config
from rankscope.metric_catalogue import Metric
from rankscope.results import Judgement, Result

NOTHING = tables.frame({"metric": [], "value": []})
CLAIMS = list(entries("claim").values())


def claim(id_: str) -> Any:
    return pytest.param(CATALOGUE[id_], id=id_)


@pytest.fixture(params=[claim(each.id) for each in CLAIMS])
def listed(request):
    return request.param


def test_ids_are_unique_and_every_entry_is_found_by_its_own():
    assert len(CATALOGUE) == len(ENTRIES)
    assert all(entry(each.id.lower(), each.kind) is each for each in ENTRIES)


def test_an_unknown_id_is_refused_with_what_there_is():
    with pytest.raises(InputError, match="no claim 'D17'; choose D1, D2"):
        entry("D17", "claim")
    with pytest.raises(InputError, match="no claim 'widths'"):
        entry("widths", "claim")


def test_an_unknown_option_is_refused_with_what_there_is():
    with pytest.raises(InputError, match="D8 has no option 'layers'; it has seed, architectures"):
        run("D8", layers=3)


def test_d8_offers_no_option_for_it_draws_nothing():
    assert CATALOGUE["D8"].options == ()


def test_the_catalogue_is_read_without_anything_heavy():
    code = (
        "import sys; from rankscope.experiments import CATALOGUE; assert CATALOGUE['D1'].title; "
        "print(*[name for name in ('torch', 'polars', 'transformers') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


@pytest.mark.parametrize("id_", CATALOGUE)
def test_what_is_read_from_a_file_is_what_its_module_holds(id_):
    assert CATALOGUE[id_] == CATALOGUE[id_].module().ENTRY


def test_a_file_is_all_an_experiment_takes():
    found = read_entry(
        """import torch

ENTRY = kit.claim(
    "X1",
    "A is (B).",
    metrics=(kit.Metric("gap", "Gap"),),
)
OTHER = (
    1,
)
"""
    )
    assert found == Entry("X1", "claim", "A is (B).", small=True, metrics=(Metric("gap", "Gap"),))
    with pytest.raises(InputError, match="an experiment begins with ENTRY"):
        read_entry("import torch")
    with pytest.raises(ValueError, match="malformed"):
        read_entry('ENTRY = kit.claim("X1", TITLE)')


def test_experiments_are_ordered_by_letter_and_number():
    known = [*entries("claim")]
    assert known.index("D9") + 1 == known.index("D10")
    assert known == sorted(known, key=lambda id_: (id_[0], int(id_[1:])))


def test_papers_are_named_as_people_name_them():
    for each in ENTRIES:
        assert each.title
        assert not {"D", "W"} & set(each.title.replace("'", " ").split())
        assert (
            not each.source
            or re.search(r"(et al\.|\w and \w+) 20", each.source)
            or "rankscope" in (each.source)
        )


def test_every_claim_has_a_frozen_configuration_and_a_run(listed):
    module = listed.module()
    assert issubclass(module.Config, Config)
    assert module.Config.__dataclass_params__.frozen
    assert callable(getattr(module, "run", None) or module.judge)
    assert set(listed.options) <= {each.name for each in fields(module.Config)}


def test_every_configuration_can_be_written_and_compared(listed):
    config = listed.module().Config()
    json.dumps(config.describe(), allow_nan=False)
    assert config == listed.module().Config()
    hash(config)


def test_every_field_is_in_the_digest(listed):
    config = listed.module().Config()
    digests = {config.digest(listed.id)}
    for each in fields(config):
        digests.add(
            replace(config, **{each.name: another(getattr(config, each.name))}).digest(listed.id)
        )
    assert len(digests) == 1 + len(fields(config))


def another(value: Any) -> Any:
    """Some other value of the same kind."""
    if value is None:
        return ("another text",)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str) and value in PARTS:
        return next(name for name in PARTS if name != value)
    if isinstance(value, str):
        return f"{value}, too"
    if isinstance(value, tuple):
        return (*value[:-1], another(value[-1])) if value else (Model("bert-base", at_init=True),)
    if isinstance(value, Model):
        return Model("gpt2", at_init=True)
    assert is_dataclass(value), value
    first = fields(value)[0].name
    return replace(value, **{first: another(getattr(value, first))})


def test_two_seeds_write_two_files(listed):
    config = listed.module().Config()
    stems = {_result(listed, replace(config, seed=seed)).stem for seed in (0, 1)}
    assert len(stems) == 2
    assert all(stem.startswith(f"{listed.id.lower()}-") for stem in stems)


def _result(listed: Any, config: Config) -> Result:
    return Result(listed.id, "", "", (), NOTHING, listed.provenance(config))


def test_what_a_provenance_has_more_is_left_out_where_it_is_empty():
    config = Config()
    found = CATALOGUE["D8"].provenance(config, notes={}, input="four texts")
    assert found["input"] == "four texts"
    assert "notes" not in found


def test_doubts_follow_the_sentences_and_stand_in_the_provenance():
    d8, config = CATALOGUE["D8"], Config()
    told: dict[str, Any] = {"question": "Is it?", "sentences": ["It is."], "table": NOTHING}
    found = d8.result(config, **told, about={"input": "texts"}, notes={"GPT": "a digit is lost"})
    assert found.sentences == ("It is.", "Note on GPT: a digit is lost.")
    assert found.provenance == d8.provenance(
        config, input="texts", notes={"GPT": "a digit is lost"}
    )
    assert (found.id, found.title, found.source) == (d8.id, d8.title, d8.source)
    calm = d8.result(config, **told, title="Mine", judgement=Judgement("fails", ""))
    assert calm.sentences == ("It is.",)
    assert "notes" not in calm.provenance
    assert (calm.title, calm.verdict) == ("Mine", "fails")


def test_two_sources_of_one_name_have_two_digests():
    d5 = CATALOGUE["D5"].module()
    one, other = (
        d5.Config(models=(Model(f"{folder}/mini"),)).digest("D5") for folder in ("a", "b")
    )
    assert one != other


def test_small_experiments_run_in_one_thread_and_leave_the_number_as_it_was(monkeypatch):
    seen = []
    threads = [7]
    run_alone = SimpleNamespace(run=lambda *_: seen.append(torch.get_num_threads()))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: threads.__setitem__(0, number))
    for id_ in ("W6", "W2"):
        monkeypatch.setattr(type(CATALOGUE[id_]), "module", lambda _: run_alone)
        CATALOGUE[id_].run(Config())
    assert (seen, threads) == ([1, 7], [7])


def test_an_experiment_that_fails_leaves_the_number_of_threads_as_it_was(monkeypatch):
    before = torch.get_num_threads()
    failing = SimpleNamespace(run=lambda *_: 1 / 0)
    monkeypatch.setattr(type(CATALOGUE["W6"]), "module", lambda _: failing)
    with pytest.raises(ZeroDivisionError):
        CATALOGUE["W6"].run(Config())
    assert torch.get_num_threads() == before
