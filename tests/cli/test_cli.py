"""The command line as a user meets it: its output, its files and its exit code."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from rankscope.errors import InputError

TINY = ["--layers=2", "--heads=2", "--width=16"]
SMALL = [*TINY, "--samples=2", "--length=12"]
QUESTIONS = ("diagnose", "trace", "paths", "deep", "bounds", "masks", "predict", "advise")
KEYS = {
    "id", "title", "question", "source", "verdict", "judgement", "beyond", "sentences",
    "findings", "key_figures", "summary", "table", "provenance", "files", "headline", "warnings",
    "listings", "parts", "answers",
}  # fmt: skip


def test_as_a_process_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rankscope", "trace", *SMALL, "--json", "--table"]
    got = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert json.loads(got.stdout)["table"]
    assert "Traceback" not in got.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["diagnose", "--help"], ["reproduce", "--help"], ["reproduce"], ["study"]],
)
def test_help_and_lists_import_nothing_heavy(arguments) -> None:
    heavy = "{'torch', 'polars', 'altair', 'numpy', 'transformers', 'scipy'}"
    code = (
        "import sys, rankscope.cli as c\n"
        f"sys.argv = ['rankscope', *{arguments!r}]\n"
        "try: c.main()\n"
        "finally: sys.stderr.write(str(sorted(" + heavy + " & set(sys.modules))))"
    )
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert got.stderr == "[]"
    assert got.stdout


def test_version(rankscope) -> None:
    assert rankscope("--version").stdout.startswith("rankscope 0.")


@pytest.fixture
def unpictured(monkeypatch: pytest.MonkeyPatch) -> None:
    """No charts are rendered: each takes seconds, and figures have tests of their own."""

    def save(_chart: object, path: str) -> None:
        Path(path).write_bytes(bytes(2000))

    monkeypatch.setattr("rankscope.show.report._files.save", save)


@pytest.mark.usefixtures("unpictured")
def test_diagnose_writes_report_table_and_charts(rankscope, tmp_path: Path) -> None:
    got = rankscope("diagnose", *SMALL, "--output", "out", "--charts")
    assert got.returncode == 0, got.stderr
    files = sorted((tmp_path / "out").iterdir())
    assert {path.suffix for path in files} == {".html", ".parquet", ".png"}
    assert all(re.match("diagnose-[0-9a-f]{8}", path.name) for path in files)
    (page,) = (path for path in files if path.suffix == ".html")
    assert got.stdout.rstrip().endswith(str(Path("out") / page.name))
    (table,) = (path for path in files if path.suffix == ".parquet")
    assert {"SAN", "SAN+MLP", "SAN+skip", "transformer"} <= {*pl.read_parquet(table)["variant"]}


@pytest.mark.usefixtures("unpictured")
def test_runs_that_differ_in_anything_leave_files_of_their_own(rankscope, tmp_path: Path) -> None:
    kinds = [
        ["--seed=1"],
        ["--seed=2"],
        ["--init=lecun"],
        ["--without=skip"],
        ["--metrics=residual"],
    ]
    for options in (*kinds, *kinds):  # the same again writes the same files
        assert rankscope("trace", *SMALL, *options, "--output=out").returncode == 0
    assert len(list((tmp_path / "out").glob("*.parquet"))) == len(kinds)


@pytest.mark.parametrize("command", QUESTIONS[1:])  # of diagnose, above
@pytest.mark.usefixtures("unpictured")
def test_every_question_leaves_its_files_in_a_default_folder(rankscope, tmp_path, command) -> None:
    got = rankscope(command, *SMALL, "--init=lecun")
    assert got.returncode == 0, got.stderr
    for kind in ("parquet", "html"):
        (path,) = (tmp_path / "rankscope-output").glob(f"{command}-????????.{kind}")
        assert path.stat().st_size > 1000
    assert not list((tmp_path / "rankscope-output").glob("*.png"))
    assert "layer" in got.stdout
    assert "width 16" in " ".join(got.stdout.splitlines()[:4])  # below the question


@pytest.mark.parametrize("command", QUESTIONS)
def test_every_json_has_the_same_keys(rankscope, tmp_path: Path, command) -> None:
    got = rankscope(command, *SMALL, "--json")
    result = json.loads(got.stdout, parse_constant=pytest.fail)
    assert set(result) == KEYS
    assert result["id"] == command
    assert result["sentences"]
    assert result["table"] is None
    assert len(got.stdout) < 200_000
    assert list(tmp_path.iterdir()) == []  # JSON alone writes no files


def test_json_names_the_files_that_were_written(rankscope, tmp_path: Path) -> None:
    files = json.loads(rankscope("trace", *SMALL, "--json", "--charts", "--output=out").stdout)[
        "files"
    ]
    assert set(files) == {"table", "chart", "page"}
    assert all((tmp_path / path).is_file() for path in files.values())


def test_trace_json_holds_what_was_asked_for(rankscope) -> None:
    got = rankscope(
        "trace", *SMALL, "--metrics=stable_rank,dobrushin", "--without=mlp", "--json", "--table"
    )
    result = json.loads(got.stdout)
    rows = result["table"]
    assert {row["metric"] for row in rows} == {"stable_rank", "dobrushin"}
    assert {row["head"] for row in rows if row["metric"] == "dobrushin"} == {0, 1}
    assert {row["layer"] for row in rows if row["metric"] == "stable_rank"} == {0, 1, 2}
    assert result["provenance"]["without"] == "mlp"


def test_own_text_from_file_and_standard_input(rankscope, tmp_path: Path) -> None:
    text = "First paragraph here.\n\nAnd a second one,\nover two lines.\n"
    (tmp_path / "mine.txt").write_text(text)
    small = ["--layers=1", "--heads=1", "--width=8", "--json", "--table"]
    by_file = rankscope("trace", *small, "--text", "mine.txt")
    by_pipe = rankscope("trace", *small, "--text", "-", stdin=text)
    assert by_file.returncode == 0, by_file.stderr
    table = json.loads(by_file.stdout)["table"]
    assert {row["sample"] for row in table} == {0, 1}
    assert json.loads(by_pipe.stdout)["table"] == table


def test_seeds_decide_the_figures(rankscope) -> None:
    first, again, other = (
        rankscope("trace", *SMALL, "--json", f"--seed={seed}").stdout for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["diagnose", "--width=10", "--heads=3"], "width=10 is not divisible by heads=3"),
        (["diagnose", "--layers=0"], "--layers 0"),
        (["diagnose", "--layers=x"], "--layers"),
        (["diagnose", "--init=magic"], "--init magic"),
        (["diagnose", "--init=nan"], "init scale=nan"),
        (["diagnose", "--mask=window"], "window"),
        (["diagnose", "--samples=0"], "--samples 0"),
        (["diagnose", "--length=2"], "--length 2"),
        (["diagnose", *TINY, "--text=nowhere.txt"], "nowhere.txt"),
        (["diagnose", *TINY, "--text=."], "--text ."),
        (["diagnose", "--nonsense"], "--nonsense"),
        (["trace", "--metrics=magic"], "magic"),
        (["trace", "--metrics="], "no metric"),
        (["trace", "--without=attention"], "attention"),
        (["trace", *SMALL, "--output=a-file"], "a-file"),
        (["dance"], "dance"),
        (["diagnose", "--seed=99999999999999999999"], "--seed"),
        (["diagnose", "--mlp-ratio=1e308"], "mlp_ratio"),
        (["diagnose", "./nowhere"], "./nowhere"),
        (["paths", *SMALL, "--max-length=-1"], "max_length=-1"),
        (["deep", "--in-norm=foo"], "in-norm"),
        (["deep", "--center=foo"], "center"),
        (["deep", "--without=foo"], "'foo' is not a part of a network"),
        (["deep", "--samples=0"], "--samples 0"),
        (["bounds", "--without=foo"], "'foo' is not a part of a network"),
        (["masks", "--masks=foo"], "foo"),
        (["masks", "--masks=,"], "--masks is empty"),
        (["masks", "--mask=causal"], "compares those in --masks"),
        (["masks", "--depth=0", *SMALL], "depth=0"),
        (["predict", "--draws=0", *SMALL], "draws"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    refuses, tmp_path: Path, arguments: list[str], says: str
) -> None:
    (tmp_path / "a-file").write_text("in the way")
    assert says in refuses(*arguments)
    assert (tmp_path / "a-file").read_text() == "in the way"


def test_no_command_shows_the_help(rankscope) -> None:
    got = rankscope()
    assert all(command in got.stdout for command in (*QUESTIONS, "claim", "study", "models"))
    assert got.stderr == ""


def test_interruption_is_told_and_has_its_code(rankscope, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rankscope.cli.inputs.question", interrupted)
    got = rankscope("diagnose")
    assert got.returncode == 130
    assert got.stderr == "rankscope: interrupted.\n"


def test_names_that_look_like_markup(rankscope, tmp_path: Path) -> None:
    got = rankscope("trace", *SMALL, "--output", "odd[red]")
    assert got.returncode == 0, got.stderr
    assert "odd[red]" in got.stdout.replace("\n", "")
    assert len(list((tmp_path / "odd[red]").glob("trace-*.parquet"))) == 1


def test_binary_text_is_one_sentence(refuses, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    assert "UTF-8" in refuses("trace", *SMALL, "--text", "noise")


def test_every_metric_fits_eighty_columns(rankscope, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("rankscope.show.report.write", lambda *_, **__: {})  # its charts take long
    got = rankscope("trace", *SMALL, "--metrics=all")
    assert "…" not in got.stdout
    assert "Second singular" in got.stdout


def test_paths_of_a_small_network(rankscope, tmp_path: Path) -> None:
    got = rankscope("paths", *SMALL, "--by-head", "--dtype=float64", "--output", "out")
    assert got.returncode == 0, got.stderr
    assert "9 attention paths" in got.stdout
    names = {re.sub("-[0-9a-f]{8}", "", path.name) for path in (tmp_path / "out").iterdir()}
    assert names == {"paths.html", "paths.parquet"}
    result = json.loads(rankscope("paths", *SMALL, "--dtype=float64", "--json").stdout)
    assert result["key_figures"]["paths"] == 9
    assert result["key_figures"]["reconstruction_error"] < 1e-12
    cut = json.loads(rankscope("paths", *SMALL, "--max-length=1", "--json").stdout)
    assert cut["key_figures"]["reconstruction_error"] is None
    assert cut["provenance"]["config"]["max_length"] == 1


DEEPER = ["--layers=9", "--heads=2", "--width=16", "--samples=2", "--length=12", "--json"]


def test_deep_goes_below_what_floats_hold(rankscope) -> None:
    found = json.loads(rankscope("deep", *DEEPER).stdout)
    ends = [
        row["median"]
        for row in found["summary"]
        if row["variant"] == "scaled"
        and row["metric"] == "log10_relative_residual"
        and row["layer"] == 9
    ]
    assert ends[0] < -400
    assert "doubly exponential" in found["sentences"][1]


def test_deep_keeps_what_is_not_left_out(rankscope) -> None:
    got = rankscope("deep", *SMALL, "--layers=4", "--without=", "--json")
    assert "no collapse" in json.loads(got.stdout)["sentences"][0]


def test_deep_takes_a_model(rankscope) -> None:
    got = rankscope("deep", "gpt2", "--at-init", "--samples=1", "--length=6", "--json")
    assert got.returncode == 0, got.stderr
    assert "exponential" in json.loads(got.stdout)["sentences"][1]


def test_bounds_say_why_they_do_not_apply(rankscope) -> None:
    got = rankscope("bounds", *SMALL, "--without=mlp", "--json", "--table")
    told = " ".join(json.loads(got.stdout)["sentences"])
    assert "does not apply" in told
    assert "skip" in told


def test_masks_are_compared_to_any_depth(rankscope) -> None:
    chosen = ["--masks", "full, window:2|star:1, block:4", "--depth=7"]
    result = json.loads(rankscope("masks", *SMALL, *chosen, "--json").stdout)
    variants = [row["variant"] for row in result["summary"]]
    assert list(dict.fromkeys(variants)) == ["full", "star(1) | window(-2, +2)", "block(4)"]
    assert max(row["layer"] or 0 for row in result["summary"]) == 7
    assert "its graph has no center" in " ".join(result["sentences"])


def test_masks_by_name_work_everywhere(rankscope) -> None:
    got = rankscope("trace", *SMALL, "--mask=window:1 | star:1", "--json")
    assert json.loads(got.stdout)["provenance"]["mask"] == "star(1) | window(-1, +1)"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["deep", "--norm=rms"], "--norm"),
        (["bounds", "--norm-place=pre"], "--norm-place"),
        (["masks", "--mlp-ratio=2"], "--mlp-ratio"),
        (["trace", "--without=norm", "--norm=rms"], "--norm"),
        (["trace", "--norm=none", "--norm-place=pre"], "--norm-place"),
        (["trace", "--mask="], "mask"),
    ],
)
def test_options_about_parts_that_are_not_there_are_refused(refuses, arguments, word) -> None:
    assert word in refuses(*arguments, *SMALL)


def test_large_seeds_are_fine_without_a_random_mask(rankscope) -> None:
    assert rankscope("trace", *SMALL, "--seed=3000000000", "--json").returncode == 0


def test_provenance_does_not_describe_a_part_that_is_left_out(rankscope) -> None:
    whole, bare = (
        json.loads(rankscope("trace", *SMALL, *options, "--json").stdout)["provenance"]
        for options in ([], ["--without=norm"])
    )
    assert whole["norm"] == "layer, post"
    assert "norm" not in bare
    assert bare["without"] == "norm"


def test_the_answer_of_diagnose_fits_a_screen(rankscope, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    small = [*SMALL, "--init=lecun", "--skip=0", "--mlp-ratio=0"]
    got = rankscope("diagnose", *small, "--length=40")
    lines = got.stdout.splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80
    starts = ["where", "why", "untrained", "what now"]
    assert [start for line in lines for start in starts if line.startswith(start)] == starts
    assert lines[-1].startswith("page")
    full = rankscope("diagnose", *small, "--length=40", "--full", "--chapters=core")
    assert len(full.stdout.splitlines()) > 100
    assert "The pure-attention core (" not in full.stdout  # not among those left out
    assert "\nThe pure-attention core" in full.stdout
    assert "Path lengths (paths)" in full.stdout


@pytest.mark.parametrize(
    ("skip", "asked", "code"),
    [
        ("0", [], 0),
        ("0", ["--fail-on=collapse"], 3),
        ("0", ["--fail-on=slow"], 3),
        ("1", ["--fail-on=collapse"], 0),
        ("1", ["--fail-on=slow"], 0),
    ],
)
def test_scripts_can_fail_on_a_collapse(rankscope, skip, asked, code) -> None:
    deep = ["--layers=8", "--heads=2", "--width=16", "--samples=2", "--length=12"]
    got = rankscope("diagnose", *deep, "--init=lecun", f"--skip={skip}", *asked, "--json")
    assert got.returncode == code, got.stderr
    fates = {finding["fate"] for finding in json.loads(got.stdout)["findings"]}
    assert ("collapse" in fates) == (skip == "0")


def test_no_verdict_is_no_success_for_a_script(monkeypatch) -> None:
    from rankscope.cli import commands

    silent = SimpleNamespace(findings=())
    monkeypatch.setattr(commands, "_answer", lambda *_, **__: silent)
    with pytest.raises(InputError, match="--fail-on slow: there is no verdict"):
        commands.diagnose.__wrapped__(None, fail_on="slow")
    commands.diagnose.__wrapped__(None)


def test_what_is_about_other_output_is_refused(refuses) -> None:
    assert "--table needs --json" in refuses("trace", *SMALL, "--table")
    assert "--charts writes a file" in refuses("trace", *SMALL, "--json", "--charts")
