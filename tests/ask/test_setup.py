"""One setup for all who ask: the same fields, defaults and refusals, in each one's own words."""

from dataclasses import fields

import pytest
import torch

from rankscope.ask import COMMAND_LINE, GRID, Asks, Setup, Sources, options
from rankscope.ask._asked import setup_readers
from rankscope.core.network import Spec
from rankscope.errors import InputError
from rankscope.experiments.catalogue import entries
from rankscope.models.text import passages

SHAPE = {"layers": 2, "heads": 2, "width": 8}


def test_every_option_is_a_field_with_its_default() -> None:
    listed = options(Asks())
    known = {slot.name: slot.default for slot in fields(Setup)}
    design = Spec(12, 12, 768, norm_place="post")
    for name, (word, _, default) in listed.items():
        assert word.help.endswith(".")
        if name in known:
            assert default == (known[name] if name != "without" else "")
        elif name == "init":
            assert Spec(12, 12, 768, init=default).init == design.init
        elif name not in ("mask", "embedding_scale"):  # which depend on other fields
            assert default == getattr(design, name)


def test_what_a_question_has_by_default_is_what_its_options_show() -> None:
    for entry in entries("question").values():
        shown = {name: default for name, (_, _, default) in options(entry.asks).items()}
        setup = Setup.of({}, entry.asks)
        assert (setup.samples, setup.length) == (shown["samples"], shown["length"])
        assert ",".join(setup.without) == shown["without"]


def test_what_is_not_said_has_bert_base_s_shape() -> None:
    assert Setup.of({}).spec == Spec(12, 12, 768, norm_place="post", norm_eps=1e-12)
    assert Setup.of({}).texts.samples == tuple(passages()[:32])


REFUSED = [
    ({"at_init": True}, "--at-init needs a MODEL", "at_init needs a model"),
    ({"ids": "ids.txt"}, "--ids needs a MODEL", "ids needs a model"),
    (
        {"model": "gpt2", "at_init": True, "norm_place": "pre"},
        "--norm-place describes a random network, but a MODEL was named",
        "norm_place describes a random network, but a model was named",
    ),
    ({"model": "gpt2"}, "add --at-init", "add at_init = true"),
    (
        {"model": "a/b", "at_init": True, "pickled": True},
        "--pickled applies to pretrained weights, and --at-init draws new ones",
        "pickled applies to pretrained weights, and at_init draws new ones",
    ),
    (
        {"model": "a/b", "ids": "a", "text": "b"},
        "--ids and --text are two inputs",
        "ids and text are two inputs",
    ),
    (
        {"model": "a/b", "ids": "a", "tokenizer": "c/d"},
        "--tokenizer has no effect: --ids are tokens already",
        "tokenizer has no effect: ids are tokens already",
    ),
    ({"length": 2}, "--length 2 is out of range", "length=2 is out of range"),
    ({"samples": 0}, "--samples 0 is out of range", "samples=0 is out of range"),
    ({"seed": -1}, "--seed -1 is out of range", "seed=-1 is out of range"),
    ({"heads": 0}, "--heads 0", "heads=0"),
    ({"norm": "batch"}, "--norm batch is unknown", "norm='batch' is unknown"),
    ({"device": "warp"}, "--device warp is unknown", "device='warp' is unknown"),
    ({"text": "gone.txt"}, "--text gone.txt: the file does", "text gone.txt: the file does not"),
    ({"without": "head"}, "'head' is not a part of a network", "'head' is not a part of a network"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "on_the_command_line", "in_a_grid"), REFUSED)
def test_a_refusal_is_in_the_words_of_whoever_asks(said, on_the_command_line, in_a_grid) -> None:
    for dialect, words in ((COMMAND_LINE, on_the_command_line), (GRID, in_a_grid)):
        with pytest.raises(InputError) as refused:
            _ = Setup.of(said, sources=Sources(dialect=dialect)).texts
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("said", "asks"),
    [
        ({"without": "norm", "norm": "rms"}, Asks()),
        ({"without": "norm", "norm": "rms"}, Asks(without="skip,mlp,norm")),
        ({"norm": "none", "norm_place": "pre"}, Asks()),
        ({"variant": "SAN", "mlp_ratio": 2.0}, Asks(without="skip,mlp,norm")),
    ],
)
def test_what_changes_nothing_is_refused_unless_an_axis_may_change_it(said, asks) -> None:
    with pytest.raises(InputError, match="has no effect"):
        Setup.of(said, asks, Sources(dialect=COMMAND_LINE))
    assert Setup.of(said, asks)


def test_what_a_question_leaves_out_by_itself_is_described_by_nobody() -> None:
    for dialect, add in ((COMMAND_LINE, "add --without=''"), (GRID, 'add without = ""')):
        with pytest.raises(InputError, match=f"norm has no effect.*{add} to keep"):
            Setup.of({"norm": "rms"}, Asks(without="skip,mlp,norm"), Sources(dialect=dialect))


def test_shapes_are_known_before_there_are_weights() -> None:
    said = {**SHAPE, "samples": 3, "length": 11, "gated": True, "mask": "causal"}
    setup = Setup.of(said)
    shapes, subject = setup.outline(), setup.subject()
    assert shapes.x.shape == subject.x.shape == (3, 11, 8)
    assert shapes.network.spec == subject.network.spec
    assert not list(shapes.network.parameters())


def test_a_subject_is_what_was_said_of_it() -> None:
    said = {"without": "mlp", "dtype": "float64", "special_tokens": False, "mask": "random:2"}
    subject = Setup.of({**SHAPE, **said, "seed": 3, "samples": 2, "init": "0.1"}).subject()
    assert subject.x.dtype == torch.float64
    assert not subject.network.spec.mlp_width
    assert subject.network.spec.init.scale == 0.1
    assert "3" in str(subject.network.spec.mask)
    assert not subject.measured[:, 0].any()
    assert subject.about["without"] == "mlp"
    assert subject.about["init"] == "0.1"


def test_a_key_follows_what_changes_numbers() -> None:
    keys = [
        Setup.of({**SHAPE, **more}).key()
        for more in (
            {}, {"seed": 1}, {"length": 9}, {"samples": 1}, {"without": "skip"}, {"skip": 0.5},
            {"dtype": "float64"}, {"special_tokens": False}, {"text": {"sentences": ["A rose."]}},
        )
    ]  # fmt: skip
    assert len({str(key) for key in keys}) == len(keys)
    for same in (
        {"norm": "layer"},
        {"variant": "transformer"},
        {"device": "cpu"},
        {"mask": "full"},
    ):
        assert Setup.of({**SHAPE, **same}).key() == keys[0]


def test_ids_are_read_from_beside_a_grid_and_are_in_the_key(tmp_path) -> None:
    (tmp_path / "ids.txt").write_text("[2, 7, 3]\n2 5 8 3\n")
    setup = Setup.of({"model": "a/b", "ids": "ids.txt"}, sources=Sources(str(tmp_path)))
    assert setup.token_ids == ((2, 7, 3), (2, 5, 8, 3))
    before = setup.key()
    (tmp_path / "ids.txt").write_text("[2, 7, 4]\n")
    again = Setup.of({"model": "a/b", "ids": "ids.txt"}, sources=Sources(str(tmp_path)))
    assert again.key() != before


@pytest.mark.parametrize(
    ("available", "chosen"),
    [(["cpu"], "cpu"), (["cpu", "cuda:0", "cuda:1"], "cuda:0"), (["cpu", "mps"], "mps")],
)
def test_auto_is_the_first_gpu_or_the_cpu(monkeypatch, available, chosen) -> None:
    monkeypatch.setattr("rankscope.ask._asked.devices", lambda: available)
    assert setup_readers()["device"]("auto") == chosen
