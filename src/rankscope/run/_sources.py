"""What runs read from disk: texts and models, each looked at once however many runs there are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from rankscope.core.network import Spec
from rankscope.errors import InputError, RankscopeError
from rankscope.models.text import Tokenizer, paragraphs, passages
from rankscope.process.fingerprints import fingerprint, folder_fingerprint
from rankscope.run._axes import shown
from rankscope.run._values import nearest, placed

BUNDLED = "bundled passages"


@dataclass(frozen=True)
class Texts:
    """Samples, where they are from, what names them, and how many tokens each has."""

    samples: tuple[str, ...]
    origin: str
    digest: str
    tokens: tuple[int, ...]

    def longest(self, length: int) -> int:
        """Tokens of the longest sample, cut to so many."""
        return max(min(length, each) for each in self.tokens)


@dataclass(frozen=True)
class Sources:
    """Texts and models, relative to a folder."""

    folder: str
    _texts: dict[Any, Texts] = field(default_factory=dict)
    _contents: dict[str, str] = field(default_factory=dict)
    _specs: dict[str, Spec | None] = field(default_factory=dict)

    def texts(self, text: str | Mapping[str, Any] | None, most: int) -> Texts:
        """The first samples of a file, of a table ``{ sentences = [...] }``, or bundled ones."""
        key = (text if text is None or isinstance(text, str) else fingerprint(text), most)
        if key not in self._texts:
            found, origin = self._read(text)
            samples = tuple(found[:most])
            tokens = tuple(map(_count_tokens, samples))
            self._texts[key] = Texts(samples, origin, fingerprint(samples), tokens)
        return self._texts[key]

    def place(self, model: str) -> str:
        """A model's folder if there is one of that name, else the name itself."""
        folder = placed(self.folder, model, "model")
        if folder.is_dir():
            return str(folder)
        if model.startswith((".", "/", "~")) or model.count("/") > 1:
            raise InputError(f"model: there is no folder {folder}; give one that holds a model.")
        return model

    def contents(self, *places: str | None) -> list[str]:
        """Names of what models and tokenisers are: of the files in a folder, or its own name."""
        return [self._content(place) for place in places if place is not None]

    def spec(self, place: str) -> Spec | None:
        """A model's structure as far as it is known without loading it."""
        if place not in self._specs:
            try:
                self._specs[place] = _spec(place)
            except (RankscopeError, OSError, ValueError):
                self._specs[place] = None
        return self._specs[place]

    def _content(self, place: str) -> str:
        if place not in self._contents:
            folder = Path(place)
            there = folder.is_dir()
            self._contents[place] = f"files {folder_fingerprint(folder)}" if there else place
        return self._contents[place]

    def _read(self, text: str | Mapping[str, Any] | None) -> tuple[Sequence[str], str]:
        if text is None:
            return passages(), BUNDLED
        if isinstance(text, Mapping):
            return _sentences(text), "given texts"
        path = placed(self.folder, text, "text")
        try:
            found = paragraphs(path.read_bytes().decode("utf-8-sig"))
        except (OSError, ValueError) as error:  # also a path that cannot be one
            raise InputError(f"text: {path} cannot be read as UTF-8 text: {error}.") from None
        if not found:
            raise InputError(f"text: {path} holds no text; give at least one paragraph.")
        return found, text


@lru_cache(maxsize=1024)
def _count_tokens(text: str) -> int:
    return len(Tokenizer.bundled()(text))


def _sentences(table: Mapping[str, Any]) -> list[str]:
    for name in table:
        if name != "sentences":
            raise InputError(f"text.{name} is unknown; {nearest(name, ('sentences',))}")
    found = table.get("sentences")
    if not isinstance(found, list) or not found or not all(isinstance(e, str) for e in found):
        raise InputError(f"text.sentences: got {shown(found)}, expected a list of texts.")
    return found


def _spec(place: str) -> Spec | None:
    from transformers import AutoConfig  # seconds, which no other grid has to wait for

    from rankscope.models.families import BUILTIN, FAMILIES

    if Path(place).is_dir():
        config: Any = AutoConfig.from_pretrained(place, local_files_only=True)
    elif place in BUILTIN:
        config = BUILTIN[place]()
    else:
        return None
    able = [family for family in FAMILIES if config.model_type in family.model_types]
    return able[0].spec(config) if able else None
