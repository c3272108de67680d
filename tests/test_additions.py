"""What one addition costs: each is made in a copy of the source, used, and its files counted.

The limits are those of the table in docs/architecture.md, which is read here.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import rankscope

SOURCE = Path(rankscope.__file__).parent
DOCUMENTED = Path(__file__).parents[1] / "docs" / "architecture.md"


@dataclass(frozen=True)
class Addition:
    """Texts put into files: at the end, or in front of a mark; ``use`` fails if it is not there."""

    edits: dict[str, tuple[str, str]]
    """By file, the mark before which the text goes (the end if it is empty), and the text."""
    use: str


ADDITIONS = {
    "a metric": Addition(
        {
            "core/metrics/_dummy.py": (
                "",
                "from torch import Tensor\n\n\n"
                "def dummy(x: Tensor, *, token_mask: Tensor | None = None) -> Tensor:\n"
                "    return x.abs().sum((-1, -2))\n",
            ),
            "metric_catalogue.py": (
                "\n_EVERY",
                '\n_DUMMY = Metric("dummy", "Dummy", module="rankscope.core.metrics._dummy")\n'
                '_BY_TRACES["hidden"] = (_DUMMY,)\n',
            ),
        },
        'assert rankscope.trace(NET, X, metrics=["dummy"]).table["value"].min() > 0',
    ),
    "a norm": Addition(
        {
            "core/network/_norms.py": (
                "",
                "class Dummy(nn.RMSNorm):\n    pass\n\n\n"
                'NORMS["dummy"] = NormEntry(Dummy, lambda width, eps, _: Dummy(width, eps=eps), '
                "_rms_rule)\n",
            ),
            "core/names.py": ("", 'NormName = Literal[NormName, "dummy"]\nNORMS["dummy"] = "d"\n'),
        },
        'net = rankscope.Network.random(rankscope.Spec(2, 2, 8, norm="dummy"))\n'
        "assert rankscope.deep_trace(net, X) and rankscope.path_lengths(net, X)\n"
        "from rankscope.show.lab._state import State\n"
        'assert State.read("norm=dummy").norm == "dummy"',
    ),
    "an activation": Addition(
        {
            "core/network/_activations.py": (
                "",
                'ACTIVATIONS["dummy"] = ACTIVATIONS["relu"]\n',
            )
        },
        'assert rankscope.Network.random(rankscope.Spec(1, 1, 4, activation="dummy")).spec',
    ),
    "a score": Addition(
        {
            "core/network/_content_scores.py": (
                "",
                "@dataclass(frozen=True)\nclass Dummy:\n"
                "    def build(self, heads: int, head_width: int) -> Scores:\n"
                "        return DummyScores()\n\n\n"
                "class DummyScores(Scores):\n"
                "    def bias(self, query, key, positions):\n"
                "        return positions[:, None, None, :].to(query.dtype)\n\n\n"
                'DUMMY = ScoreEntry("dummy", DummyScores, "dummy", Dummy(), rule="bias")\n'
                "CONTENT_SCORES = (*CONTENT_SCORES, DUMMY)\n",
            ),
            "core/network/__init__.py": (
                "",
                "from rankscope.core.network._content_scores import Dummy as Dummy\n",
            ),
            "core/names.py": ("", 'SCORES["dummy"] = "dummy"\n'),
        },
        "spec = rankscope.Spec(2, 2, 8, scores=rankscope.network.Dummy())\n"
        "net = rankscope.Network.random(spec)\n"
        "assert rankscope.deep_trace(net, X) and rankscope.path_lengths(net, X)\n"
        "from rankscope.show.lab._network import spec_of\n"
        'assert spec_of(State.read("scores=dummy")).scores == spec.scores',
    ),
    "a model family": Addition(
        {
            "models/families/_architectures.py": (
                "",
                'FAMILIES = (*FAMILIES, Family("Dummy", ("dummy",), roles={"fused": "qkv"}))\n',
            ),
        },
        'assert "Dummy" in [family.name for family in rankscope.families.FAMILIES]',
    ),
    "a claim, a study, a question": Addition(
        {
            "experiments/claims/x1.py": (
                "",
                '''"""Claim X1: dummy."""

from dataclasses import dataclass

import polars as pl

from rankscope import tables
from rankscope.experiments import kit

ENTRY = kit.claim(
    "X1",
    "Dummies hold.",
    source="Nobody et al. 2030",
    question="Do they?",
    domain="dummies",
    seconds=1,
    metrics=(kit.Metric("dummy", "Dummy"),),
)
CHARTS = (kit.Drawing("by_setting", "A dummy.", "dummy"),)


@dataclass(frozen=True)
class Config(kit.Config):
    """Nothing."""


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """One number."""
    return tables.from_rows(("parameter", "setting", "metric", "value"), [("a", 1.0, "dummy", 2.0)])


def judge(config: Config, table: pl.DataFrame) -> kit.Answer:
    """It holds."""
    return kit.Answer(["It does."], stated={"one": True}, key_figures={"dummy": 2.0})
''',
            )
        },
        'assert rankscope.experiments.run("X1").verdict == "holds"',
    ),
    "a sweep engine": Addition(
        {
            "run/_dummy.py": (
                "",
                "from rankscope.run._engine import Inline\n\n\n"
                "class Dummy(Inline):\n    def __init__(self, dummies=1):\n"
                "        self.dummies = dummies\n",
            ),
            "run/_engine.py": (
                "",
                'ENGINES["dummy"] = EngineKind(\n    "rankscope.run._dummy:Dummy", "dummies", '
                '{"dummies": EngineOption("How many.", int)}\n)\n',
            ),
        },
        'GRID = {"layers": 1, "heads": 1, "width": 4, "length": 4, "samples": 1}\n'
        "with tempfile.TemporaryDirectory() as folder:\n"
        '    assert rankscope.sweep(GRID, folder, engine="dummy", dummies=2).done == 1\n'
        "from rankscope.cli.sweep_command import SweepOptions\n"
        'assert SweepOptions(dummies=2).engine_options == {"dummies": 2}',
    ),
    "a figure": Addition(
        {
            "show/figures/_curves.py": (
                "",
                '''

@figure("summary", "Points are dummies.", "as a dummy")
@checked
def dummy(summary: pl.DataFrame, *, metric: str, title: str | None = None) -> alt.ConcatChart:
    """A dummy."""
    rows = select(summary, [metric], drawer="dummy", needed=("layer",))
    return lines(rows, x=layer_axis(rows["layer"].to_list()), title=title)
''',
            )
        },
        "from rankscope.results import Drawing, Result\n"
        "from rankscope.show import figures\n"
        'traced = rankscope.trace(NET, X, metrics=["residual"])\n'
        'result = Result("r", "R", "What?", (), traced.table, {})\n'
        'assert figures.draw(Drawing("dummy", metric="residual"), result).to_dict()["concat"]',
    ),
    "a kind of collapse": Addition(
        {
            "experiments/diagnosis/_rules.py": (
                "",
                '@rule("dummy", "never")\ndef dummy(evidence: RuleEvidence) -> str:\n'
                '    return "nothing"\n\n\n'
                "RULES = (*RULES, dummy)\n",
            ),
        },
        'assert rankscope.diagnose(NET, X).findings[-1].kind == "dummy"',
    ),
}
LIMITS = {"a score": 3}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    """The source with every addition in it, and the files each touched."""
    root = tmp_path_factory.mktemp("additions")
    shutil.copytree(SOURCE, root / "rankscope", ignore=shutil.ignore_patterns("__pycache__"))
    touched = {}
    for name, addition in ADDITIONS.items():
        for file, (mark, text) in addition.edits.items():
            path = root / "rankscope" / file
            before = path.read_text("utf-8") if path.exists() else ""
            if mark:
                assert before.count(mark) == 1, (name, file)
                after = before.replace(mark, text + mark)
            else:
                after = f"{before}\n\n{text}" if before else text
            path.write_text(after, "utf-8")
        touched[name] = sorted(addition.edits)
    return root, touched


def test_additions_work(copy: tuple[Path, dict[str, list[str]]]) -> None:
    """In one interpreter, since each would import torch."""
    setup = (
        "import tempfile, torch, rankscope\n"
        "NET = rankscope.Network.random(rankscope.Spec(2, 2, 8))\n"
        "X = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(0))\n"
    )
    # The rules' own dummy comes last: it is the last finding.
    code = setup + "\n".join(addition.use for addition in ADDITIONS.values())
    environment = {**os.environ, "PYTHONPATH": str(copy[0]), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", ADDITIONS)
def test_an_addition_touches_few_files(name: str, copy: tuple[Path, dict[str, list[str]]]) -> None:
    assert len(copy[1][name]) <= LIMITS.get(name, 2)


@pytest.mark.parametrize("name", ADDITIONS)
def test_the_documentation_names_the_files(name: str) -> None:
    (row,) = re.findall(rf"^\| {name} \|.*$", DOCUMENTED.read_text("utf-8"), re.MULTILINE)
    for file in ADDITIONS[name].edits:
        named = file.rpartition("/")[0] if "dummy" in file or "x1" in file else file
        assert named in row, row
