"""The command line, run in this process."""

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import transformers as hf

from rankscope.cli import main
from rankscope.models.text import Tokenizer


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def rankscope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Ran]:
    """Run the command line in an empty folder, in this process: importing torch takes seconds."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "argv", ["rankscope", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        capsys.readouterr()  # what fixtures have printed
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return run


@pytest.fixture
def refuses(rankscope) -> Callable[..., str]:
    """Run a command that must end with exit code 2 and one sentence, which is returned."""

    def run(*arguments: str) -> str:
        got = rankscope(*arguments)
        assert got.returncode == 2, got.stdout
        assert got.stdout == ""
        assert got.stderr.startswith("rankscope: ")
        sentence, *notes = got.stderr.splitlines(keepends=True)
        assert [note.partition("#")[0] for note in notes] in ([], ["  See docs/errors.md"])
        return sentence

    return run


@pytest.fixture
def wordy(tmp_path: Path) -> str:
    """A tiny BERT with a tokeniser, saved in a folder of the working directory."""
    shape = {"vocab_size": 2400, "hidden_size": 24, "num_hidden_layers": 2}
    more = {"num_attention_heads": 4, "intermediate_size": 40}
    hf.BertModel(hf.BertConfig(**shape, **more)).save_pretrained(tmp_path / "wordy")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *Tokenizer.bundled().words]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    hf.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "wordy")
    return "wordy"


@pytest.fixture
def seeing(tmp_path: Path) -> str:
    """A tiny ViT, saved in a folder of the working directory."""
    shape = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"intermediate_size": 40, "image_size": 8, "patch_size": 4}
    hf.ViTModel(hf.ViTConfig(**shape, **more)).save_pretrained(tmp_path / "seeing")
    return "seeing"
