"""Trace, convert and diagnose every architecture of the zoo, and write docs/models.md.

``python -m tests.zoo.survey`` surveys all of them, ``python -m tests.zoo.survey bert gpt2`` only
these, keeping the other rows of the page. It fails if an error is not one of rankscope's, or if
traced layers differ from the model's own hidden states.
"""

import re
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

import rankscope
from rankscope.core.metrics import dispersion, residual
from rankscope.errors import BlocksNotFoundError, RankscopeError, UnsupportedModelError

from .architectures import build, inputs, names
from .configurations import EXPLAINED, UNAVAILABLE

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
LIMIT = 60
"""Seconds that one step may take."""
BAD = {"BROKEN", "FOREIGN", "DIFFERS"}
"""A model of the zoo does not run, an error is not one of rankscope's, numbers are wrong."""
METRICS = ("relative_residual", "dispersion")
TOLERANCE = 1e-4


class TimeLimitError(BaseException):
    """Raised into a step that takes too long."""


@dataclass(frozen=True)
class Row:
    """What can be done with one architecture; ``-`` where it was not tried."""

    name: str
    kind: str = "-"
    traced: str = "-"
    diagnosed: str = "-"
    converted: str = "-"
    note: str = ""

    @property
    def line(self) -> str:
        """The row of the table."""
        cells = (
            f"`{self.name}`",
            self.kind,
            self.traced,
            self.diagnosed,
            self.converted,
            self.note,
        )
        return f"| {' | '.join(cells)} |"

    @classmethod
    def read(cls, line: str) -> "Row":
        """The row that ``line`` writes."""
        name, *cells = (cell.strip() for cell in line.strip().strip("|").split(" | "))
        return cls(name.strip("`"), *cells)


def survey(name: str, seed: int = 0, *, diagnosed: bool = True) -> Row:
    """The row of one architecture."""
    row = Row(name)
    if name in UNAVAILABLE:
        return replace(row, note=f"not built: {UNAVAILABLE[name]}")
    try:
        with _limit(), torch.no_grad():
            model = build(name, seed)
            given = inputs(model)
            own = _run(model, given)
    except Exception as error:
        return replace(row, traced="BROKEN", note=f"{type(error).__name__}: {error}"[:120])
    row = replace(row, kind=f"`{type(model).__name__}`")
    steps: dict[str, Callable[[], tuple[str, str]]] = {
        "traced": lambda: _trace(model, given, own),
        "converted": lambda: _convert(model, given),
    }
    if diagnosed:
        steps["diagnosed"] = lambda: (_diagnose(model, given) and "yes", "")
    answers = {step: _attempt(answer) for step, answer in steps.items()}
    notes = dict.fromkeys(filter(None, (note for _, note in answers.values())))
    row = replace(row, **{step: answer for step, (answer, _) in answers.items()})
    if row.traced == "DIFFERS" and name in EXPLAINED:
        row, notes = replace(row, traced="no"), {EXPLAINED[name]: None}
    return replace(row, note="; ".join(notes))


def _attempt(step: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    """What a step answers; of a refusal, the first sentence."""
    try:
        with _limit(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return step()
    except UnsupportedModelError as error:
        return "no", _reason(str(error))
    except RankscopeError as error:
        return "no", _first_sentence(str(error))
    except TimeLimitError:
        return "no", f"takes more than {LIMIT} s"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return "FOREIGN", f"{type(error).__name__} at {where}: {_first_sentence(str(error))}"


def _reason(message: str) -> str:
    """The part that is not converted, and why, in a few words."""
    named = re.match(r"(layer \d+) \(\w+\): its (.*?) is not converted, because (.*?);", message)
    if named is None:
        return _first_sentence(message)
    layer, part, why = named.groups()
    return f"{layer}, {part}: {why}".replace("|", "/")[:120]


def _first_sentence(message: str) -> str:
    sentence = re.split(r"(?<=[\w)])[.;:?] |\n", message.strip())[0].rstrip(".")
    return sentence.replace("|", "/")[:120]


@contextmanager
def _limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeLimitError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# What a trace is compared with.


def _run(model: nn.Module, given: Mapping[str, Any]) -> list[Sequence[Tensor]]:
    """The model's own hidden states: every tuple of them in its output."""
    torch.manual_seed(0)
    try:
        return list(_own_states(model(**given, output_hidden_states=True)))
    except (TypeError, AttributeError, ValueError):  # it does not know the option
        torch.manual_seed(0)
        return list(_own_states(model(**given)))


def _own_states(output: Any) -> Iterator[Sequence[Tensor]]:
    for name, value in output.items() if isinstance(output, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _own_states(value)
        elif (
            name.endswith("hidden_states")
            and isinstance(value, tuple)
            and len(value) > 1
            and all(isinstance(state, Tensor) for state in value)
        ):
            yield value


@dataclass(frozen=True)
class Stack:
    """What a trace of one stack of blocks gives: hidden states and figures of each layer."""

    states: list[Tensor]
    figures: list[list[float]]

    def is_like(self, own: Sequence[Tensor]) -> bool:
        """Whether the model's own hidden states are of the same layers and tokens."""
        same = len(self.states) == len(own)
        return same and all(map(_is_shaped_like, self.states[:-1], own[:-1]))

    def equals(self, own: Sequence[Tensor], masks: Sequence[Tensor | None]) -> bool:
        """Whether layers are the model's own hidden states, all but the last.

        The last often includes the final norm, which is in no block. Some models leave out the
        input of the first block and give the last layer before and after the norm.
        """
        return self.is_like(own) and any(
            all(
                _is_close(self.states[layer], own[layer - shift])
                and any(
                    _is_close(self.figures[layer], _measure(own[layer - shift], one))
                    for one in masks
                )
                for layer in range(shift, len(own) - 1 + shift)
            )
            for shift in (0, 1)
        )


def _trace(
    model: nn.Module, given: Mapping[str, Any], own: list[Sequence[Tensor]]
) -> tuple[str, str]:
    """Whether what is traced is equal to the model's own hidden states, if it gives any."""
    stacks, mask = _trace_stacks(model, given), given.get("attention_mask")
    equal = [
        (name, number)
        for name, stack in stacks.items()
        for number, states in enumerate(own)
        if stack.equals(states, [mask, None] if "decoder." in name else [mask])
    ]
    left = [states for number, states in enumerate(own) if number not in {n for _, n in equal}]
    other = [stack for name, stack in stacks.items() if name not in {name for name, _ in equal}]
    wrong = any(stack.is_like(states) for stack in other for states in left)
    named = ", ".join(f"`{name}`" for name in stacks if name)
    note = f"blocks={named}" if named else ""
    return "DIFFERS" if wrong else "equal" if equal else "yes", note


def _trace_stacks(model: nn.Module, given: Mapping[str, Any]) -> dict[str, Stack]:
    """Every stack that runs, by its name, which is empty if there is nothing to choose."""
    try:
        return {"": _trace_stack(model, given, None)}
    except BlocksNotFoundError as error:
        names = _stacks_named(error)
    stacks: dict[str, Stack] = {}
    refusals: list[RankscopeError] = []
    for name in names:
        try:
            stacks[name] = _trace_stack(model, given, name)
        except RankscopeError as error:
            refusals.append(error)
    if not stacks:
        raise refusals[0]
    return stacks


def _stacks_named(error: BlocksNotFoundError) -> list[str]:
    """The stacks that an error asks to choose among."""
    if "several stacks" not in str(error):
        raise error
    return re.findall(r"'([\w.]+)'", str(error).split(";")[0])


def _trace_stack(model: nn.Module, given: Mapping[str, Any], blocks: str | None) -> Stack:
    kept: list[Tensor] = []

    def keep(x: Tensor, token_mask: Tensor | None = None) -> Tensor:  # noqa: ARG001
        kept.append(x.clone())
        return x.new_full((len(x),), len(kept) - 1)

    torch.manual_seed(0)
    traced = rankscope.trace(model, given, blocks=blocks, metrics=METRICS)
    figures: list[list[float]] = [[] for _ in set(traced.columns["layer"])]
    for layer, value in zip(traced.columns["layer"], traced.columns["value"], strict=True):
        figures[layer].append(value)
    torch.manual_seed(0)
    numbered = rankscope.trace(model, given, blocks=blocks, metrics={"states": keep}).columns
    places = dict(zip(numbered["layer"], map(int, numbered["value"]), strict=True))
    return Stack([kept[places[layer]] for layer in sorted(places)], figures)


def _measure(state: Tensor, mask: Tensor | None) -> list[float]:
    """The metrics of one hidden state, as a trace has them."""
    state = state[None] if state.ndim == 2 else state
    fits = mask is not None and mask.shape == state.shape[:2]
    token_mask = mask.bool() if fits else None
    relative = residual(state, relative=True, token_mask=token_mask)
    return [*relative.tolist(), *dispersion(state, token_mask=token_mask).tolist()]


def _is_shaped_like(traced: Tensor, own: Tensor) -> bool:
    return traced.shape in (own.shape, (1, *own.shape))


def _is_close(one: Any, other: Any) -> bool:
    one, other = torch.as_tensor(one), torch.as_tensor(other)
    if not _is_shaped_like(one, other):
        return False
    scale = other.abs().max().item()
    return torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE * scale)


def _convert(model: nn.Module, given: Mapping[str, Any]) -> tuple[str, str]:
    """Convert a model as it is, or on the inputs it is known to run on."""
    try:
        rankscope.load(model)
    except UnsupportedModelError as error:
        if "probe=" not in str(error):
            raise
        rankscope.load(model, probe=given)
        return "yes", "converted with `probe=`"
    return "yes", ""


def _diagnose(model: nn.Module, given: Mapping[str, Any]) -> Any:
    """Diagnose a model; one with several stacks, that which runs on these inputs."""
    try:
        return _diagnose_stack(model, given)
    except BlocksNotFoundError as error:
        names = _stacks_named(error)
    refusals: list[RankscopeError] = []
    for name in names:
        try:
            return _diagnose_stack(model, given, blocks=name)
        except RankscopeError as error:
            refusals.append(error)
    raise refusals[0]


def _diagnose_stack(model: nn.Module, given: Mapping[str, Any], **options: str) -> Any:
    ids = given.get("input_ids")
    if options or ids is None or ids.is_floating_point():
        return rankscope.diagnose(model, given, **options)
    mask = given.get("attention_mask")
    return rankscope.diagnose(model, ids, token_mask=None if mask is None else mask.bool())


# The page.


def page(rows: Sequence[Row]) -> str:
    """The document."""
    built = [row for row in rows if not row.note.startswith("not built")]
    traced = Counter(row.traced for row in built)
    facts = {
        "architectures in Transformers": len(rows),
        "built small and run": len(built),
        "traced, equal to the model's own hidden states": traced["equal"],
        "traced, without own hidden states to compare with": traced["yes"],
        "diagnosed": sum(row.diagnosed == "yes" for row in built),
        "converted and verified": sum(row.converted == "yes" for row in built),
    }
    counts = "\n".join(f"| {name} | {count} |" for name, count in facts.items())
    table = "\n".join(row.line for row in rows)
    return _PAGE.format(version=hf.__version__, counts=counts, table=table)


_PAGE = """# Models

What works with which architecture, from a run over all of Transformers {version}: every model type
is built small with random weights and run on random inputs; words are those of the
[glossary](glossary.md). This page is generated by `make zoo`; tests check a sample of it.

- **traced**: `rankscope.trace` measures every layer. *equal*: its layers agree with the hidden
  states that the model itself returns (all but the last, which often includes the final norm).
  *yes*: the model returns none, or not one per block. A note `blocks=` names the stacks of a model
  that has several.
- **diagnosed**: `rankscope.diagnose` answers.
- **converted**: `rankscope.load` builds our network on its weights and verifies that the two are
  equal, which paths, ablations and scaled arithmetic need.

| | |
|---|---|
{counts}

| model type | class | traced | diagnosed | converted | note |
|---|---|---|---|---|---|
{table}
"""


def read_page() -> dict[str, Row]:
    """The rows of the page by model type."""
    lines = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else []
    rows = (Row.read(line) for line in lines if line.startswith("| `"))
    return {row.name: row for row in rows}


def main() -> None:
    """Survey what the command line names, or everything, and write the page."""
    torch.set_num_threads(1)
    chosen = sys.argv[1:] or names()
    rows = {} if len(sys.argv) == 1 else read_page()
    for name in chosen:
        rows[name] = survey(name)
        print(rows[name].line, flush=True)
    PAGE.write_text(page([rows[name] for name in names() if name in rows]), encoding="utf-8")
    if bad := [row.line for row in rows.values() if BAD & set(vars(row).values())]:
        sys.exit("\n".join(["does not run, foreign error or wrong numbers:", *bad]))


if __name__ == "__main__":
    main()
