"""A session reads a model once, and has the numbers of single traces whatever happens to it."""

import weakref

import pytest
import torch
import transformers
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import rankscope
from rankscope.core.network import Network, Spec
from rankscope.core.tracing import Session, _attention, attach, trace
from rankscope.core.tracing._provenance import ModelRecord
from rankscope.errors import InputError, KindError, ModelError

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


def network() -> Network:
    return Network.random(Spec(2, 2, 8), seed=0)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@pytest.fixture
def readings(monkeypatch) -> list[nn.Module]:
    """The models that were read, in order."""
    read: list[nn.Module] = []
    original = ModelRecord.of.__func__  # type: ignore[attr-defined]

    def of(cls, model, *rest):
        read.append(model)
        return original(cls, model, *rest)

    monkeypatch.setattr(ModelRecord, "of", classmethod(of))
    return read


def agree(session: Session, model: nn.Module, **options) -> bool:
    """Whether numbers and provenance are those of a single trace, but for what is not covered."""
    ours, alone = session.trace(X, **options), trace(model, X, **options)
    settings = dict(ours.provenance.settings)
    assert "since the session began" in settings.pop("not covered")
    same = {**vars(alone.provenance)} == {**vars(ours.provenance), "settings": settings}
    return ours.columns == alone.columns and same


@pytest.mark.parametrize("make", [network, encoder])
@pytest.mark.parametrize("metrics", [("residual",), ("effective_rank", "mean_cosine")])
def test_every_pass_has_the_numbers_of_a_single_trace(make, metrics) -> None:
    model = make()
    with attach(model) as session:
        assert all(agree(session, model, metrics=metrics) for _ in range(3))
        assert agree(session, model, token_mask=torch.tensor([[True] * 4 + [False]] * 2))


def test_the_model_is_read_once(readings) -> None:
    model = network()
    with attach(model) as session:
        for scale in range(3):
            session.trace(X * scale + X)
    assert len(readings) == 1
    trace(model, X)
    trace(model, X)
    assert len(readings) == 3


def replace_block(model: nn.Module) -> None:
    model.layers[1] = encoder().layers[0]


def add_block(model: nn.Module) -> None:
    model.layers.append(encoder().layers[0])


def replace_weight(model: nn.Module) -> None:
    model.layers[0].linear1.weight = nn.Parameter(torch.ones(16, 8))


def write_weight(model: nn.Module) -> None:
    with torch.no_grad():
        model.layers[0].linear1.weight[0] = 3.0


def set_attribute(model: nn.Module) -> None:
    model.layers[0].norm1.eps = 0.5


def add_hook(model: nn.Module) -> None:
    model.layers[0].register_forward_hook(lambda _, __, output: 2 * output)


@pytest.mark.parametrize(
    "change", [replace_block, add_block, replace_weight, write_weight, set_attribute, add_hook]
)
def test_a_change_of_the_model_is_noticed(change, readings) -> None:
    model = encoder()
    with attach(model) as session:
        before = session.trace(X)
        change(model)
        after = session.trace(X)
        assert len(readings) == 2
        assert agree(session, model)
    assert after.columns != before.columns
    origins = (before.provenance, after.provenance)
    assert any(getattr(origins[0], k) != getattr(origins[1], k) for k in ("weights", "structure"))


def test_a_model_that_is_cast_is_noticed() -> None:
    model = encoder()
    with attach(model) as session:
        assert session.trace(X).provenance.dtype == "float32"
        model.double()
        assert session.trace(X.double()).provenance.dtype == "float64"


def test_writes_that_are_not_counted_show_in_the_figures_and_are_named() -> None:
    model = encoder()
    with attach(model) as session:
        before = session.trace(X)
        model.layers[0].linear2.weight.data[:] = 1.0
        after = session.trace(X)
    assert after.columns == trace(model, X).columns != before.columns
    assert after.provenance.weights == before.provenance.weights
    assert "W.data" in after.provenance.settings["not covered"]


def test_options_of_the_model_are_given_once() -> None:
    model = encoder()
    with attach(model, blocks="layers", layout="batch token feature") as session:
        assert agree(session, model, metrics=("residual",)) is False  # settings name the options
        alone = trace(model, X, blocks="layers", layout="batch token feature")
        assert session.trace(X).columns == alone.columns


def test_arrays_are_read() -> None:
    with rankscope.attach(network()) as session:
        assert session.trace(X.numpy()).columns == trace(network(), X).columns


def test_a_session_that_is_over_is_refused_and_so_are_wrong_calls() -> None:
    with attach(network()) as session:
        with pytest.raises(InputError, match="measured applies to metrics of hidden states"):
            session.trace(X, metrics=("dobrushin",), measured=torch.ones(2, 5).bool())
        with pytest.raises(KindError):
            session.trace(X, metrics=3)
    with pytest.raises(InputError, match="the session is closed"):
        session.trace(X)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("shift", torch.zeros(1))
        self.factor = 1.0
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale * self.factor + self.shift


def scaled() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Scaled(), Scaled())


CHANGES = {
    "parameter of equal value": lambda m: setattr(m[0], "scale", nn.Parameter(torch.ones(1))),
    "buffer of equal value": lambda m: setattr(m[1], "shift", torch.zeros(1)),
    "buffer written": lambda m: m[1].shift.fill_(2.0),
    "number": lambda m: setattr(m[0], "factor", 2.0),
    "new attribute": lambda m: setattr(m[0], "other", 2.0),
    "removed attribute": lambda m: delattr(m[0], "factor") or setattr(type(m[0]), "factor", 1.0),
    "module of equal weights": lambda m: setattr(m[0], "linear", m[0].linear.__class__(8, 8)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_objects_are_compared_by_identity(change, readings) -> None:
    model = scaled()
    with attach(model, blocks=[model[0], model[1]]) as session:
        session.trace(X)
        CHANGES[change](model)
        session.trace(X)
    assert len(readings) == 2


def test_modes_and_equal_numbers_are_no_change(readings) -> None:
    model = scaled()
    with attach(model, blocks=[model[0], model[1]]) as session:
        for training in (True, False, True):
            model.train(training)
            model[0].factor = float("1.0")
            session.trace(X)
    assert len(readings) == 1


def test_attention_is_compared_once_for_each_kind_of_call(monkeypatch) -> None:
    compared: list[int] = []
    original = _attention.mismatch
    monkeypatch.setattr(_attention, "mismatch", lambda *call: compared.append(1) or original(*call))
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=8,
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    ids, mask = torch.arange(10).view(2, 5), torch.ones(2, 5, dtype=torch.long)
    mask[0, 3:] = 0

    def passes(session: Session | None, *inputs: dict[str, torch.Tensor]) -> list[int]:
        counts = []
        for given in inputs:
            compared.clear()
            run = trace if session is None else session.trace
            arguments = (model, given) if session is None else (given,)
            run(*arguments, metrics="attention_entropy")
            counts.append(len(compared))
        return counts

    plain, padded = {"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}
    assert passes(None, plain, plain) == [3, 3]
    with attach(model) as session:
        assert passes(session, plain, plain, padded, padded) == [3, 0, 3, 0]
        assert passes(session, {"input_ids": ids[:, :4]}) == [3]
        model.encoder.layer[1].attention.self.scaling = 0.7  # read again
        assert passes(session, plain, plain) == [3, 0]


def test_a_replaced_dictionary_of_attributes_is_noticed(readings) -> None:
    model = scaled()
    with attach(model, blocks=[model[0], model[1]]) as session:
        session.trace(X)
        model[0].__dict__ = Scaled().__dict__
        after = session.trace(X)
    assert len(readings) == 2
    assert after.provenance.weights == trace(model, X, blocks=[*model]).provenance.weights


def test_outputs_that_modules_keep_are_not_held() -> None:
    class Keeps(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = super().forward(x)
            return self.last

    model = nn.Sequential(Keeps(), Keeps())
    with attach(model, blocks=[*model]) as session:
        session.trace(X)
        kept = [weakref.ref(block.last) for block in model]
        session.trace(X)  # reads the model again, and replaces them
        assert [output() for output in kept] == [None, None]


class Lies:
    """Attention that is another one from its second layer-pass on; it has no hash."""

    def __init__(self, after: int) -> None:
        self.after, self.calls = after, 0

    def __eq__(self, other: object) -> bool:
        return self is other

    def __call__(self, module, query, key, value, mask, **options):
        self.calls += 1
        if self.calls > self.after:
            value = value.roll(1, 2)
        return sdpa_attention_forward(module, query, key, value, mask, **options)


def test_attention_of_others_is_compared_in_every_pass(monkeypatch) -> None:
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=8,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", Lies(after=4))
    given = {"input_ids": torch.arange(10).view(2, 5)}
    with attach(model) as session:
        for _ in range(2):
            session.trace(given, metrics="attention_entropy")
        with pytest.raises(ModelError, match="does not compute what its arguments describe"):
            session.trace(given, metrics="attention_entropy")
