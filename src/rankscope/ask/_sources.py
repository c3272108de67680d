"""Texts, token ids and models on disk, each read once for all runs."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from rankscope.ask._words import GRID, Dialect
from rankscope.core.network import Spec
from rankscope.errors import InputError, RankscopeError
from rankscope.models.checkpoints import model_fingerprint, resolve_checkpoint
from rankscope.models.text import Tokenizer, paragraphs, passages
from rankscope.process import fingerprint, is_path


@dataclass(frozen=True)
class TextSamples:
    """Samples, their origin, a digest, and the number of tokens of each."""

    samples: tuple[str, ...]
    origin: str
    digest: str
    tokens: tuple[int, ...]

    def longest(self, length: int) -> int:
        """The tokens of the longest sample, at most ``length``."""
        return max(min(length, count) for count in self.tokens)


@dataclass(frozen=True)
class Sources:
    """Reads texts and models relative to a folder; ``dialect`` is for error messages."""

    folder: str = ""
    dialect: Dialect = GRID
    _texts: dict[Any, TextSamples] = field(default_factory=dict, repr=False)
    _contents: dict[str, str] = field(default_factory=dict, repr=False)
    _specs: dict[str, Spec | None] = field(default_factory=dict, repr=False)

    def texts(self, text: str | Mapping[str, Any] | None, most: int) -> TextSamples:
        """The first ``most`` texts of a file, of ``{ sentences = [...] }``, or the bundled ones."""
        key = (text if text is None or isinstance(text, str) else fingerprint(text), most)
        if key not in self._texts:
            if text is None:
                listed, origin = passages(), "bundled passages"
            elif isinstance(text, Mapping):
                listed, origin = _sentences(text), "given texts"
            else:
                listed, origin = paragraphs(self._read("text", text)), text
            if not listed:
                raise InputError(
                    f"{self._named('text', text)} has no text; give at least one paragraph."
                )
            samples = tuple(listed[:most])
            tokens = tuple(map(_count_tokens, samples))
            self._texts[key] = TextSamples(samples, origin, fingerprint(samples), tokens)
        return self._texts[key]

    def sentences(self, path: str) -> tuple[str, ...]:
        """Sentences from a table or a text; standard input is a text with one sentence per line."""
        from rankscope.models.training import read_sentences

        if path != "-":
            return read_sentences(path)
        lines = tuple(line.strip() for line in self._read("text", path).splitlines())
        if not any(lines):
            raise InputError(f"{self._named('text', path)} has no sentences.")
        return tuple(filter(None, lines))

    def ids(self, path: str, most: int) -> tuple[tuple[int, ...], ...]:
        """Token ids, one line of numbers per sample; commas and brackets are ignored."""
        rows, named = [], self._named("ids", path)
        for number, line in enumerate(self._read("ids", path).split("\n"), start=1):
            try:
                row = tuple(map(int, re.sub(r"[\[\],]", " ", line).split()))
            except ValueError:
                raise InputError(
                    f"{named}, line {number}: expected token ids, got {line[:40]!r}."
                ) from None
            if any(not 0 <= token < 2**31 for token in row):
                raise InputError(f"{named}, line {number}: token ids are between 0 and 2^31.")
            rows += [row] if row else []
        if not rows:
            raise InputError(f"{named} has no token ids; give one line of numbers per sample.")
        return tuple(rows[:most])

    def locate(self, model: str, *, latest: bool = True) -> str:
        """The folder or file of a model if it exists, otherwise its name.

        ``FOLDER@1200`` is a checkpoint of a training run, whose folder alone stands for the latest
        one unless ``latest=False``.
        """
        path = Path(resolve_checkpoint(str(placed(self.folder, model, "model")), latest=latest))
        if path.is_dir() or path.is_file():
            return str(path)
        if is_path(model, self.folder):
            where = f" in {self.folder}" if self.folder else ""
            raise InputError(
                f"model: the folder {model} does not exist{where}; give the folder of a model."
            )
        return model

    def contents(self, *locations: str | None) -> list[str]:
        """Fingerprints of the files of models and tokenisers, or their names without any."""
        for location in filter(None, locations):
            if location not in self._contents:
                path = Path(location)
                there = path.is_dir() or path.is_file()
                self._contents[location] = f"files {model_fingerprint(path)}" if there else location
        return [self._contents[location] for location in filter(None, locations)]

    def is_built_in(self, location: str) -> bool:
        """Whether a name is a built-in architecture, which has no weights."""
        from rankscope.models.families import BUILTIN

        return location in BUILTIN and not Path(location).is_dir()

    def spec(self, location: str) -> Spec | None:
        """The spec of a model, if it is known without loading the model."""
        if location not in self._specs:
            try:
                self._specs[location] = _spec(location)
            except (RankscopeError, OSError, ValueError):
                self._specs[location] = None
        return self._specs[location]

    def _named(self, option: str, path: Any) -> str:
        return f"{self.dialect.name(option)} {path}"

    def _read(self, option: str, path: str) -> str:
        """The text in a file; '-' is standard input."""
        named = self._named(option, path)
        try:
            if path != "-":
                return placed(self.folder, path, option).read_bytes().decode("utf-8-sig")
            if sys.stdin is None:
                raise InputError(f"{named} reads standard input, which is closed.")
            return sys.stdin.buffer.read().decode("utf-8-sig")
        except InputError:
            raise
        except FileNotFoundError as error:
            raise InputError(f"{named}: the file does not exist.") from error
        except OSError as error:
            raise InputError(f"{named} cannot be read: {error.strerror}.") from error
        except ValueError as error:  # also for an invalid path
            raise InputError(f"{named} cannot be read as UTF-8 text: {error}.") from error


def placed(folder: str | Path, path: str, key: str) -> Path:
    """A path relative to a folder; ``~`` is a home directory."""
    try:
        return Path(folder, Path(path).expanduser())
    except RuntimeError:
        raise InputError(
            f"{key}: the home directory in {path!r} is unknown; write the full path."
        ) from None


def nearest(name: str, known: Sequence[str]) -> str:
    """Suggestions for an unknown name."""
    close = get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"choose {', '.join(known)}."


@lru_cache(maxsize=1024)
def _count_tokens(text: str) -> int:
    return len(Tokenizer.bundled()(text))


def _sentences(table: Mapping[str, Any]) -> list[str]:
    for name in table:
        if name != "sentences":
            raise InputError(f"text.{name} is unknown; {nearest(name, ('sentences',))}")
    listed = table.get("sentences")
    if not isinstance(listed, list) or not listed or not all(isinstance(e, str) for e in listed):
        raise InputError(f"text.sentences: got {listed!r:.60}, expected a list of texts.")
    return listed


def _spec(location: str) -> Spec | None:
    # Imported here because it takes seconds.
    from rankscope.models.checkpoints import read_config
    from rankscope.models.families import BUILTIN, outline

    if Path(location).exists():
        config: Any = read_config(location, {"local_files_only": True}, pickled=True)
    elif location in BUILTIN:
        config = BUILTIN[location]()
    else:
        return None
    return outline(config)
