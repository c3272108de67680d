"""Finding the stack of blocks, or being told."""

import pytest
import torch
from torch import nn

from rankscope.core.network import Network, Spec
from rankscope.core.tracing import find_blocks, trace
from rankscope.errors import BlocksNotFoundError, InputError, ModelError, RankscopeError, ShapeError


class Piece(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return self.linear(x)


class Other(Piece):
    pass


class Holder(nn.Module):
    """Named stacks; runs all of them, or those that are asked for."""

    def __init__(self, **stacks):
        super().__init__()
        for name, stack in stacks.items():
            setattr(self, name, stack)

    def forward(self, x):
        for stack in self.children():
            for piece in stack.children() if isinstance(stack, nn.ModuleList) else (stack,):
                x = piece(x)
        return x


class Related(Holder):
    pass


class Unrelated(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Piece()


def pieces(count, width=4):
    return nn.ModuleList(Piece(width) for _ in range(count))


def test_our_own_blocks():
    net = Network.random(Spec(3, 2, 8, shared_layers=True))
    assert find_blocks(net) == list(net.blocks)
    assert len(find_blocks(net)) == 3


@pytest.mark.parametrize("kind", [nn.ModuleList, lambda made: nn.Sequential(*made)])
def test_a_stack_anywhere(kind):
    stack = kind([Piece(), Piece()])
    model = Holder(embedding=nn.Linear(4, 4), middle=Holder(deep=stack))
    assert find_blocks(model) == list(stack)


def test_the_model_may_be_the_stack():
    model = nn.Sequential(Piece(), Piece(), Piece())
    assert find_blocks(model) == list(model)


def test_the_largest_stack_wins_clearly():
    model = Holder(small=pieces(1), large=pieces(3))
    assert find_blocks(model) == list(model.large)


def test_the_outer_of_nested_stacks():
    outer = nn.ModuleList([Holder(inner=pieces(2)), Holder(inner=pieces(2))])
    assert find_blocks(Holder(outer=outer)) == list(outer)


def test_the_outer_of_nested_stacks_of_equal_size():
    """ALBERT's one group of layers: the group is the block."""
    outer = nn.ModuleList([Holder(inner=pieces(2))])
    assert find_blocks(Holder(outer=outer)) == list(outer)


@pytest.mark.parametrize(
    "stack",
    [
        nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]),  # leaves, no blocks
        nn.ModuleList([Piece(), Other()]),  # of two classes
        nn.ModuleList([Unrelated(), Holder(part=Piece())]),
        nn.Sequential(Holder(part=Piece()), Related(part=Piece())),  # of two classes, not a list
        nn.ModuleList([Holder(part=Piece()), Related(part=nn.Linear(4, 4))]),  # one is shallow
        nn.ModuleList(),
        nn.ModuleList([nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU())]),  # nothing learned
    ],
    ids=["leaves", "mixed", "unrelated", "in a row", "shallow", "empty", "weightless"],
)
def test_what_is_no_stack(stack):
    with pytest.raises(
        BlocksNotFoundError,
        match=r"Holder has no stack of blocks.*; name it \(blocks=",
    ):
        find_blocks(Holder(stack=stack))


def test_a_list_of_related_classes_is_a_stack():
    """Hybrid models mix layers of attention with others; both have a base class in common."""
    stack = nn.ModuleList([Holder(part=Piece()), Related(part=Piece())])
    assert find_blocks(Holder(stack=stack)) == list(stack)


@pytest.mark.parametrize(("one", "two"), [(2, 2), (2, 3), (3, 2)])
def test_similar_stacks_are_not_guessed_between(one, two):
    model = Holder(encoder=pieces(one), decoder=pieces(two))
    with pytest.raises(BlocksNotFoundError, match="several stacks of blocks") as caught:
        find_blocks(model)
    assert "'encoder'" in str(caught.value)
    assert "'decoder'" in str(caught.value)
    assert find_blocks(model, "encoder") == list(model.encoder)


def test_the_boundary_of_similar_is_half():
    model = Holder(small=pieces(2), large=pieces(4))
    assert find_blocks(model) == list(model.large)


def test_naming_a_stack_its_parts_or_one_block():
    model = Holder(stack=pieces(3))
    assert find_blocks(model, "stack") == list(model.stack)
    assert find_blocks(model, "stack.1") == [model.stack[1]]
    assert find_blocks(model, ["stack.2", "stack.0"]) == [model.stack[2], model.stack[0]]
    assert find_blocks(model, [model.stack[0]]) == [model.stack[0]]
    assert find_blocks(model, model.stack) == list(model.stack)


def test_names_are_honoured_by_trace():
    torch.manual_seed(0)
    model, x = Holder(stack=pieces(3)), torch.randn(2, 5, 4)
    whole = trace(model, x)
    by_name = trace(model, x, blocks="stack")
    by_modules = trace(model, x, blocks=list(model.stack))
    assert whole.columns == by_name.columns == by_modules.columns
    last = trace(model, x, blocks=["stack.2"], metrics=["residual"])
    both = trace(model, x, metrics=["residual"])
    assert last.columns["layer"] == [0, 0, 1, 1]
    assert last.columns["value"] == both.columns["value"][4:]


def test_layers_come_in_the_order_they_run():
    torch.manual_seed(0)
    model, x = Holder(stack=pieces(3)), torch.randn(1, 5, 4)
    turned = trace(model, x, blocks=["stack.2", "stack.0", "stack.1"])
    assert turned.columns == trace(model, x).columns


@pytest.mark.parametrize("named", ["stakc", "stack.7", ["stack.0", "nothing"]], ids=str)
def test_wrong_names_list_the_stacks(named):
    model = Holder(stack=pieces(3), head=Holder(inner=pieces(1)))
    with pytest.raises(BlocksNotFoundError, match=r"Holder has no submodule .*stack, head\.inner"):
        find_blocks(model, named)


def test_wrong_name_where_the_model_is_the_stack():
    """Its own name is empty, which reads as nothing at all."""
    with pytest.raises(
        BlocksNotFoundError, match=r"has no submodule 'layers'; (?!its stacks are \.)"
    ):
        find_blocks(nn.Sequential(Piece(), Piece()), "layers")


def test_wrong_name_where_there_is_no_stack():
    with pytest.raises(BlocksNotFoundError, match="it has no ModuleList of blocks"):
        find_blocks(nn.Linear(2, 2), "layers")


def test_no_names_at_all():
    with pytest.raises(BlocksNotFoundError, match=r"blocks=\[\] names no block"):
        find_blocks(Holder(stack=pieces(2)), [])


@pytest.mark.parametrize("named", [3, [3], [None]], ids=str)
def test_names_of_the_wrong_kind(named):
    with pytest.raises(RankscopeError, match="blocks"):
        find_blocks(Holder(stack=pieces(2)), named)


def test_blocks_of_another_model_never_run():
    with pytest.raises(InputError, match="ran none of the blocks"):
        trace(Holder(stack=pieces(2)), torch.ones(1, 2, 4), blocks=list(pieces(2)))


def test_blocks_that_are_not_about_sequences():
    class Pooling(nn.Module):
        def __init__(self):
            super().__init__()
            self.stack = pieces(1)

        def forward(self, x):
            return self.stack[0](x[0, 0])

    with pytest.raises(ShapeError, match=r"layer 0 has shape \(4,\), expected \(batch, token"):
        trace(Pooling(), torch.ones(1, 2, 4))


def test_an_unbatched_sequence_is_one_sample():
    torch.manual_seed(0)
    model, x = Holder(stack=pieces(2)), torch.randn(5, 4)
    with pytest.raises(InputError, match=r"\(5, 4\), and nothing.*one sequence\)"):
        trace(model, x)  # as well five samples of no tokens
    alone = trace(model, x, layout="batch token feature")
    assert set(alone.columns["sample"]) == {0}
    assert alone.columns["value"] == pytest.approx(trace(model, x[None]).columns["value"], rel=1e-6)


def test_attention_metrics_need_a_model_whose_attention_can_be_seen():
    model = Holder(stack=pieces(2))
    with pytest.raises(ModelError, match=r"need a rankscope Network.* Holder is neither"):
        trace(model, torch.ones(1, 2, 4), metrics=["dobrushin"])
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
