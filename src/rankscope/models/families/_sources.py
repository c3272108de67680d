"""What of the Hub is on this machine already."""

import copy
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from torch import nn
from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoTokenizer
from transformers.utils import logging

from rankscope.arguments import checked
from rankscope.errors import KindError, SourceError
from rankscope.models.families._builtin import BUILTIN
from rankscope.models.families._tokenization import BundledTokenizer
from rankscope.streams import global_stream

_WEIGHTS = "model.safetensors"


@checked
def cached_folder(hub_id: str) -> Path | None:
    """The folder of a model whose weights were downloaded before; None if there is none."""
    try:
        found = try_to_load_from_cache(hub_id, _WEIGHTS)
    except HFValidationError:  # no id of the Hub: a folder that is not there, for instance
        return None
    return Path(found).parent if isinstance(found, str) else None


Source = tuple[nn.Module, Any, Any]
"""A model, its tokeniser or None, its image processor or None."""
_LONG = 300
"""Characters of a loader's own complaint that are passed on."""


def initialise(name: str, seed: int, options: dict[str, Any], tokenizer: Any = None) -> Source:
    """A model with random weights, from a built-in name, a folder or a Hub id."""
    given = None if tokenizer is None else another_tokenizer(tokenizer)
    if name in BUILTIN and not Path(name).is_dir():
        config = BUILTIN[name]()
        own = BundledTokenizer.for_config(config)
    else:
        options = {**options, **_where(name)}
        config = _attempt(name, action=lambda: AutoConfig.from_pretrained(name, **options))
        own = _tokenizer(name, options) if given is None else None
    trusted = options["trust_remote_code"]
    with global_stream(seed, "original"):
        model = _attempt(name, lambda: AutoModel.from_config(config, trust_remote_code=trusted))
    return model.eval(), own if given is None else given, None


def load_pretrained(
    name: str, options: dict[str, Any], *, pickled: bool, tokenizer: Any = None
) -> Source:
    """A model with its own weights, from a folder or a Hub id."""
    given = None if tokenizer is None else another_tokenizer(tokenizer)
    place = _where(name)
    name = str(Path(name).expanduser()) if place["local_files_only"] else name
    safetensors = None if pickled else True
    model, report = _attempt(
        name,
        pickled=pickled,
        action=lambda: AutoModel.from_pretrained(
            name,
            use_safetensors=safetensors,
            weights_only=True,
            output_loading_info=True,
            **options,
            **place,
        ),
    )
    _complete(name, report)
    chosen = {key: options[key] for key in ("revision", "trust_remote_code")} | place
    reads = _tokenizer(name, chosen) if given is None else given
    processor = _optional(AutoImageProcessor, name, chosen) if reads is None else None
    return model.eval(), reads, processor


def _complete(name: str, report: Any) -> None:
    """Weights a checkpoint lacks would be drawn at random; only poolers and heads may be."""
    missing = sorted(key for key in report["missing_keys"] if "pool" not in key)
    if missing:
        raise SourceError(
            f"{name} lacks {len(missing)} of the model's weights, {missing[0]} among them, so it "
            "is not a whole checkpoint; init=True (--at-init) draws all of them at random."
        )


def _where(name: str) -> dict[str, bool]:
    """Check a folder that was meant as one; where the Hub is out of reach, use its cache alone."""
    path = Path(name).expanduser()
    if path.is_dir():
        _check_folder(path)
        return {"local_files_only": True}
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise SourceError(f"there is no folder {name}; give a folder that holds a model.")
    return {"local_files_only": not _hub_is_reachable()}


def _check_folder(folder: Path) -> None:
    """Whether a folder says which architecture it holds, and keeps to itself."""
    config = folder / "config.json"
    if not config.is_file():
        raise SourceError(f"{folder} holds no config.json, so it is not a saved model.")
    described = _read_json(config)
    if not isinstance(described, dict) or not described.get("model_type"):
        raise SourceError(
            f"{config} names no model_type, so it does not say which architecture this is; add "
            'it, for example "model_type": "bert".'
        )
    for index in sorted(folder.glob("*.index.json")):
        found = _read_json(index)
        placed = found.get("weight_map") if isinstance(found, dict) else None
        if not isinstance(placed, dict) or not all(isinstance(v, str) for v in placed.values()):
            raise SourceError(f"{index} does not say which weights are in which file.")
        for file in sorted({str(each) for each in placed.values()}):
            inside = os.path.normpath(file)
            if Path(inside).is_absolute() or inside.startswith(".."):
                raise SourceError(f"{index} points outside its folder, to {file}; it is not read.")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{path} cannot be read as JSON: {error}.") from None


def _hub_is_reachable() -> bool:
    """Whether the Hub's name resolves; the client itself would retry for half a minute."""
    if getproxies():
        return True  # then the proxy resolves names, and only trying tells
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def _attempt(name: str, action: Callable[[], Any], *, pickled: bool | None = None) -> Any:
    """Run one of transformers' loaders; its failures become one sentence."""
    try:
        with _quiet():
            return action()
    except SourceError:
        raise
    except Exception as error:  # whatever a foreign folder makes the loaders raise
        reason = shorten(f"{type(error).__name__}: {error}", _LONG, placeholder=" …").rstrip(".")
        advice = _advice(name, pickled=pickled)
        raise SourceError(f"{name} could not be loaded ({reason}).{advice}") from error


def _advice(name: str, *, pickled: bool | None) -> str:
    """What may help, as far as one can see; without ``pickled``, it is not about weights."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        unweighted = "its architecture needs no weights (init=True, --at-init"
        known = f" {name!r} is built in: {unweighted}, or {name}@init to compare)."
        known = known if name in BUILTIN else ""
        return f" Give a folder, or a Hub id that is cached or while the Hub can be reached.{known}"
    if pickled is None or any(folder.glob("*.safetensors")):
        return ""
    if pickled:
        return " A pickle file may hold weights and nothing else; save the model as safetensors."
    return " Weights must be safetensors; pickle files need pickled=True (--pickled)."


def another_tokenizer(tokenizer: Any) -> Any:
    """A tokeniser that was asked for: of another folder or Hub id, or one at hand."""
    if not isinstance(tokenizer, str | Path):
        return _at_hand(tokenizer)
    name = str(tokenizer)
    if not Path(name).expanduser().is_dir():
        place = _where(name)
    else:
        name, place = str(Path(name).expanduser()), {"local_files_only": True}
    found = _tokenizer(name, {"trust_remote_code": False, **place})
    if found is None:
        raise SourceError(f"{name} holds no tokeniser that knows any word.")
    return found


def _at_hand(tokenizer: Any) -> Any:
    """A tokeniser object that can pad; the caller's own stays as it is."""
    if not callable(tokenizer):
        raise KindError(
            f"tokenizer is a {type(tokenizer).__name__}, expected a folder, a Hub id or a "
            "tokeniser of transformers."
        )
    pads = getattr(tokenizer, "pad_token", "") is not None
    return tokenizer if pads else _ready_to_pad(copy.deepcopy(tokenizer))


def _tokenizer(name: str, options: dict[str, Any]) -> Any:
    """The tokeniser of a folder or Hub id, ready to pad; None if there is none."""
    tokenizer = _optional(AutoTokenizer, name, options)
    if tokenizer is None or len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        return None  # without a vocabulary file, transformers makes one up that knows no word
    return _ready_to_pad(tokenizer)


def _ready_to_pad(tokenizer: Any) -> Any:
    if getattr(tokenizer, "pad_token", "") is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _optional(kind: Any, name: str, options: dict[str, Any]) -> Any:
    """A tokeniser or processor if there is one."""
    try:
        with _quiet():
            return kind.from_pretrained(name, **options)
    except Exception:  # there is none, or none that can be read; texts are refused then
        return None


@contextmanager
def _quiet() -> Iterator[None]:
    """No advice from the loaders on standard error: what matters becomes an error of ours."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
