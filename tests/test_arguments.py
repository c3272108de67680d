"""What annotations ask of arguments, kind by kind, and in which words a wrong one is answered."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rankscope.arguments import Count, Exact, Range, check_fields, checked
from rankscope.errors import InputError, KindError

if TYPE_CHECKING:
    pass


@runtime_checkable
class Named(Protocol):
    def name(self) -> str: ...


class Thing:
    def name(self) -> str:
        return "thing"


def takes(annotation: Any) -> Callable[[object], object]:
    """A checked function of one argument."""

    def function(value):
        return value

    function.__annotations__ = {"value": annotation}
    return checked(function)


X = torch.zeros(2, 3)
KINDS: dict[str, tuple[Any, list[object], list[object]]] = {
    "int": (int, [0, -5, 2**63 - 1], [True, 1.0, "1", None, np.bool_(True)]),
    "float": (float, [0, 1.5, float("nan")], [True, "1", None, 1j, X, np.bool_(True)]),
    "Exact": (Exact, [0, 1.5, 2**64], [True, "1", None, 1j]),
    "bool": (bool, [True], [1, 0, None, np.int64(1)]),
    "str": (str, ["", "ä", "\0"], [b"a", 1, None, Path("a")]),
    "path": (str | Path, ["a", Path("a/b"), ""], [b"a", 1, None, ["a"]]),
    "None": (int | None, [None, 1], ["", False]),
    "Literal": (Literal["a", "b"], ["a"], [1, None, ["a"], X]),
    "Sequence": (Sequence[int], [[], [1], (1, 2), range(3)], ["12", b"12", [1, "2"], {1}, X, None]),
    "tuple": (tuple[int, ...], [(), [1]], ["1", (1, None)]),
    "pair": (tuple[int, str], [(1, "a"), [1, "a"]], [(1, 2), 1, "1a"]),
    "Mapping": (Mapping[str, int], [{}, {"a": 1}], [{1: 1}, {"a": "b"}, [], None]),
    "Iterable": (Iterable[str], [[], ["a"], iter("ab"), {"a": 1}], ["ab", [1], 1, None]),
    "Callable": (Callable[[int], int], [int, len], [1, None, "f"]),
    "Tensor": (Tensor, [X, nn.Parameter(X)], [[0.0], np.zeros(2), None, X.to_sparse()]),
    "no values": (Tensor, [X], [X.to("meta")]),
    "alias": (Float[Tensor, "a b"], [X, X.double()], [X.long(), X > 0, None]),
    "bits": (Bool[Tensor, "..."], [X > 0], [X, None]),
    "class": (nn.Module, [nn.Linear(1, 1)], [nn.Linear, X, None]),
    "protocol": (Named, [Thing()], [Thing, object(), None]),
    "Any": (Any, [None, X, 1], []),
    "by name": ("pl.DataFrame | None", [None], [1, X]),
    "type": (type[nn.Module], [nn.Linear], [nn.Linear(1, 1), None]),
}


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(one, value) for one, good, _ in KINDS.values() for value in good],
)
def test_what_is_of_the_kind_is_passed_on_as_it_is(annotation, value):
    given = takes(annotation)(value)
    assert given is value or hasattr(value, "__next__")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(one, value) for one, _, bad in KINDS.values() for value in bad],
)
def test_what_is_not_is_refused_with_the_name_of_function_and_argument(annotation, value):
    with pytest.raises(KindError, match=r"function: value.* (is|has) .*, expected "):
        takes(annotation)(value)


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (int, 2**63, "expected a whole number of 64 bits"),
        (float, 10**400, "is out of range"),
        (Exact, 10**400, "expected a number of 308 digits"),
        (Literal["a", "b"], "c", "value='c' is unknown, expected one of a, b"),
        (str, "\ud800", "half of a surrogate pair"),
        (str | Path, "a\0", "cannot be the name of a file"),
        (str | Path, "x" * 300, "cannot be the name of a file"),
        (Sequence[int], range(10**12), "has 1,000,000,000,000, expected"),
        (Iterable[int], range(10**12), "has 1,000,000,000,000, expected something to iterate"),
        (tuple[int, int], (1, 2, 3), "has 3 items, expected 2 values"),
        (Count, 0, "value=0 is out of range, expected a whole number, 1 to 1e"),
        (Annotated[float, Range(0)], float("nan"), "expected a number, 0 or more"),
        (Annotated[float, Range()], float("inf"), "expected a number, finite"),
        (Sequence[Literal["a"]], ["b"], r"value\[0\]='b' is unknown"),
    ],
)
def test_a_value_that_makes_no_sense_is_an_input_error(annotation, value, words):
    with pytest.raises(InputError, match=words):
        takes(annotation)(value)


def test_the_words_say_where_and_what_to_do():
    with pytest.raises(KindError) as caught:
        takes(Sequence[str])("ab")
    assert str(caught.value) == (
        "takes.function: value='ab' is a str, expected a sequence; put it in a list: [value]."
    )
    with pytest.raises(KindError, match=r"wrap it: torch.as_tensor\(value\)\."):
        takes(Tensor)([1.0])
    with pytest.raises(KindError, match=r"value\[1\]\[0\]=None is a NoneType, expected a str"):
        takes(Sequence[Sequence[str]])([["a"], [None]])


@checked
@dataclass
class Record:
    """A dataclass with a method of each kind."""

    size: int
    name: str = "a"

    def grow(self, *by: int, twice: bool = False, **more: float) -> int:
        del more
        return self.size + sum(by) * (1 + twice)

    @classmethod
    def of(cls, other: Self) -> Self:
        return cls(other.size)

    @staticmethod
    def half(size: int) -> int:
        return size // 2

    def _own(self, anything: int) -> int:
        return anything


def test_constructors_and_methods_of_a_class_are_checked():
    record = Record(3)
    assert record.grow(1, 2, twice=True, extra=0.5) == 9
    assert Record.of(record) == record
    assert Record.half(4) == 2
    assert record._own("x") == "x"  # ours alone
    for wrong in (
        lambda: Record("3"),
        lambda: Record(3, name=None),
        lambda: record.grow(1, "2"),
        lambda: record.grow(twice=1),
        lambda: record.grow(extra="x"),
        lambda: Record.of(3),
        lambda: Record.half(None),
    ):
        with pytest.raises(KindError, match=r"^Record(\.\w+)?: "):
            wrong()


def test_a_wrong_signature_stays_pythons():
    with pytest.raises(TypeError, match="unexpected keyword"):
        Record(3, unknown=1)
    with pytest.raises(TypeError, match="missing 1 required"):
        Record()


def test_signatures_and_words_are_kept():
    assert Record.grow.__name__ == "grow"
    assert Record.__doc__ == "A dataclass with a method of each kind."


def test_what_an_iterator_gives_is_checked_on_the_way():
    @checked
    def joined(parts: Iterable[str]) -> str:
        return "".join(parts)

    assert joined(part for part in "abc") == "abc"
    for call in (joined, lambda parts: joined(parts=parts)):
        with pytest.raises(KindError, match=r"joined: parts\[1\]=2 is a int, expected a str"):
            call(part for part in ("a", 2))
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        joined(iter("a"), "b")


def test_fields_are_checked_after_a_record_was_made():
    @dataclass
    class Child(Record):
        count: Count = 1

    made = Child(3)
    check_fields(made)
    made.count = 0
    with pytest.raises(InputError, match="Child: count=0 is out of range"):
        check_fields(made)
    made.count, made.size = 1, None
    with pytest.raises(KindError, match="Child: size=None is a NoneType"):
        check_fields(made)


@pytest.mark.parametrize(
    ("annotation", "value", "arrives"),
    [
        (int, np.int64(3), 3),
        (Count, np.uint8(3), 3),
        (int | None, np.int32(-3), -3),
        (float, np.float32(0.5), 0.5),
        (float, np.float64(0.5), 0.5),
        (float, np.longdouble(0.5), 0.5),
        (Annotated[float, Range(0, 1)], np.int16(1), 1),
        (bool, np.bool_(True), True),
        (Literal[True, "a"], np.bool_(True), True),
        (Sequence[int], [np.int64(1), 2], [1, 2]),
        (tuple[int, str], (np.int64(1), "a"), (1, "a")),
        (Sequence[Sequence[int]], [(1, np.int64(2))], [(1, 2)]),
        (Mapping[str, float], {"a": np.float64(0.5)}, {"a": 0.5}),
        (Mapping[int, str], {np.int64(1): "a"}, {1: "a"}),
    ],
)
def test_numpy_numbers_arrive_as_pythons(annotation, value, arrives):
    given = takes(annotation)(value)
    assert given == arrives
    assert repr(given) == repr(arrives)  # NumPy writes np.int64(1)


def test_numpy_numbers_of_an_iterator_and_of_a_record_arrive_as_pythons():
    @checked
    def listed(values: Iterable[int]) -> list[int]:
        return list(values)

    assert repr(listed(iter([np.int64(1)]))) == "[1]"
    assert repr(listed(values=iter([np.int64(1)]))) == "[1]"
    made = Record(np.int64(3))
    assert type(made.size) is int
    assert repr(made.grow(np.int64(1), twice=np.bool_(True))) == "5"

    @dataclass(frozen=True)
    class Frozen:
        sizes: tuple[int, ...] = ()

        def __post_init__(self):
            check_fields(self)

    assert repr(Frozen((np.int64(1), 2)).sizes) == "(1, 2)"


def test_where_anything_goes_numpy_numbers_stay_as_they_are():
    for annotation, value in ((Any, np.int64(1)), (Mapping[str, Any], {"a": np.int64(1)})):
        assert takes(annotation)(value) is value
