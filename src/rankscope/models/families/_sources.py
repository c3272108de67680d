"""Models with their own or random weights, from built-in names, folders and the Hub."""

import copy
import io
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from difflib import get_close_matches
from logging import getLogger
from pathlib import Path
from textwrap import shorten
from typing import Any, cast
from urllib.parse import urlsplit
from urllib.request import getproxies

from torch import nn

from rankscope.arguments import checked
from rankscope.errors import KindError, MissingPackageError, SourceError
from rankscope.models.checkpoints import (
    base_of_adapter,
    check_size,
    dequantisation,
    is_gguf,
    read_adapter,
    read_config,
    step_of,
    weight_bytes,
)
from rankscope.models.families._tokenization import BundledTokenizer
from rankscope.process import is_installed, is_path, require
from rankscope.streams import global_stream

_SMALL: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 576,
    "num_hidden_layers": 12,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "max_position_embeddings": 2048,
}


def _config(kind: str, **fields: Any) -> Callable[[], Any]:
    """What makes a configuration of Transformers, which is imported then."""
    return lambda: getattr(require("transformers"), kind)(**fields)


BUILTIN: dict[str, Callable[[], Any]] = {
    "bert-base": _config("BertConfig"),
    "bert-large": _config(
        "BertConfig",
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
    ),
    "albert-base-v2": _config(
        "AlbertConfig",
        hidden_size=768,
        num_attention_heads=12,
        intermediate_size=3072,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ),
    "xlnet-base": _config("XLNetConfig", d_model=768, n_layer=12, n_head=12, d_inner=3072),
    "distilbert": _config("DistilBertConfig"),
    "gpt2": _config("GPT2Config"),
    "roberta-base": _config(
        "RobertaConfig",
        vocab_size=50265,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    ),
    "llama-small": _config("LlamaConfig", **_SMALL),
    "mistral-small": _config("MistralConfig", **_SMALL, sliding_window=256),
    "qwen2-small": _config("Qwen2Config", **_SMALL),
    "qwen3-small": _config("Qwen3Config", **_SMALL, head_dim=64),
    "pythia-160m": _config(
        "GPTNeoXConfig",
        vocab_size=50304,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
    ),
    "vit-base": _config("ViTConfig"),
    "t5-base": _config("T5Config", d_model=768, d_ff=3072, num_layers=12, num_heads=12),
}
"""Configurations that ship with rankscope, so that architectures work without a download: the
published shapes, or small ones of a family."""


@checked
def cached_folder(hub_id: str) -> Path | None:
    """The folder of a model whose weights were downloaded before; None if there is none.

    >>> from rankscope.models.families import cached_folder
    >>> cached_folder("./no/such/folder") is None
    True
    """
    if not is_installed("huggingface_hub"):
        return None
    hub = require("huggingface_hub")
    try:
        found = hub.try_to_load_from_cache(hub_id, "model.safetensors")
    except hub.errors.HFValidationError:  # no id of the Hub, such as a folder that is not there
        return None
    return Path(found).parent if isinstance(found, str) else None


Source = tuple[nn.Module, Any, Any]
"""A model, its tokeniser or None, its image processor or None."""
_LONG = 300
"""Characters of a loader's own complaint that are passed on."""


def initialise(name: str, seed: int, options: dict[str, Any], tokenizer: Any = None) -> Source:
    """A model with random weights, from a built-in name, a folder or a Hub id."""
    given = another_tokenizer(tokenizer)
    if name in BUILTIN and not Path(name).is_dir():
        config = BUILTIN[name]()
        own = BundledTokenizer.for_config(config)
    else:
        name, options = _at_home(name), _chosen(name, options)
        config = _attempt(name, lambda: read_config(name, options, pickled=True))
        own = _readers(_places(name), options)[0] if given is None else None
    trusted = options["trust_remote_code"]
    size = {"trusted": trusted, "weights": None, "spread": False}
    _attempt(name, lambda: check_size(name, config, **size))
    auto = require("transformers").AutoModel
    with global_stream(seed, "original"):
        model = _attempt(name, lambda: auto.from_config(config, trust_remote_code=trusted))
    return model.eval(), own if given is None else given, None


def load_pretrained(
    name: str, options: dict[str, Any], *, pickled: bool, tokenizer: Any = None
) -> Source:
    """A model with its own weights, from a folder, a GGUF file or a Hub id.

    An adapter is merged into its model.
    """
    given = another_tokenizer(tokenizer)
    name, chosen = _at_home(name), _chosen(name, options)
    adapter = _attempt(name, lambda: read_adapter(name, chosen, pickled=pickled))
    if adapter is None:
        model, places = _read_weights(name, options, pickled=pickled), _places(name)
    else:
        base = _at_home(adapter.base)
        if not Path(base).exists() and is_path(base):
            raise SourceError(
                f"{name} is an adapter, and there is no folder {base} with its model; put the "
                "folder there, or its path into adapter_config.json (base_model_name_or_path)."
            )
        below = {**options, "revision": None if Path(base).is_dir() else adapter.revision}
        model = _read_weights(base, below, pickled=pickled)
        if any(parameter.is_meta for parameter in model.parameters()):
            raise SourceError(
                f"{name} is an adapter, which is merged in memory; load it without a device_map."
            )
        _attempt(name, lambda: adapter.merge(model))
        places = [*_places(name), base]
    reads, processor = (given, None) if given is not None else _readers(places, options)
    return model.eval(), reads, processor


def _places(name: str) -> list[str]:
    """Where a tokeniser can be: with the model, its training run, or the model of an adapter."""
    places, path = [name], Path(name)
    if path.is_dir():
        places += [str(path.parent)] if step_of(path) is not None else []
        places += [base] if (base := base_of_adapter(path)) else []
    return places


def _readers(places: list[str], options: dict[str, Any]) -> tuple[Any, Any]:
    """The first tokeniser of some places, or without any the first image processor."""
    own = {place: {**options, "revision": None} for place in places[1:]} | {places[0]: options}
    chosen = {place: _chosen(place, own[place]) for place in places}
    for place, how in chosen.items():
        if (tokenizer := _tokenizer(place, how)) is not None:
            return tokenizer, None
    for place, how in chosen.items():
        if (processor := _optional("AutoImageProcessor", place, how)) is not None:
            return None, processor
    return None, None


def _chosen(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options with which any file of a source is read."""
    return {key: options[key] for key in ("revision", "trust_remote_code")} | _where(name)


def _read_weights(name: str, options: dict[str, Any], *, pickled: bool) -> nn.Module:
    """A model with its own weights in floating point, once its files and sizes are checked."""
    chosen = _chosen(name, options)
    config = _attempt(name, lambda: read_config(name, chosen, pickled=pickled), pickled=pickled)
    size = {"trusted": options["trust_remote_code"], "spread": options["device_map"] is not None}
    weights = weight_bytes(name)
    _attempt(name, lambda: check_size(name, config, weights=weights, **size))
    reading = {**options, **chosen, "weights_only": True, "output_loading_info": True}
    path, transformers = name, require("transformers")
    if is_gguf(name):
        path, file = str(Path(name).parent), Path(name).name
        # Otherwise Transformers may fetch kernels from the Hub and run them.
        plain = transformers.GgufConfig(dequantize=True)
        reading |= {"gguf_file": file, "quantization_config": plain}
    else:
        reading |= _attempt(name, lambda: dequantisation(name, config))
        reading["use_safetensors"] = None if pickled else True
    # The reader of GGUF files has a progress bar that cannot be switched off.
    with nullcontext() if path == name else redirect_stderr(io.StringIO()):
        model, report = _attempt(
            name, lambda: transformers.AutoModel.from_pretrained(path, **reading), pickled=pickled
        )
    if path != name:
        model.config.name_or_path = name
    # Weights a checkpoint lacks would be drawn at random; only poolers and heads may be.
    missing = sorted(key for key in report["missing_keys"] if "pool" not in key)
    if missing:
        raise SourceError(
            f"{name} lacks {len(missing)} of the model's weights, {missing[0]} among them, so it "
            "is not a whole checkpoint; at_init=True (--at-init) draws all of them at random."
        )
    return cast(nn.Module, model)


def _at_home(name: str) -> str:
    """A path with ``~`` written out; other names as they are."""
    path = _expanded(name)
    return str(path) if path.exists() else name


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise SourceError(
            f"the home directory in {name} is unknown; write the full path."
        ) from None


def _where(name: str) -> dict[str, bool]:
    """Whether only files that are here are used: those of a folder, or without the Hub in reach."""
    path = _expanded(name)
    if path.is_dir() or is_gguf(str(path)):
        return {"local_files_only": True}
    if path.is_file():
        raise SourceError(f"{name} is a file; a model is a folder, a .gguf file or a Hub id.")
    if is_path(name):
        raise SourceError(f"there is no folder {name}; give a folder that holds a model.")
    return {"local_files_only": not hub_is_reachable()}


def hub_is_reachable() -> bool:
    """Whether the Hub's name resolves; the client itself would retry for half a minute."""
    if getproxies():
        return True  # then the proxy resolves names, and only trying tells
    try:
        socket.getaddrinfo(urlsplit(require("huggingface_hub").constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def _attempt(name: str, action: Callable[[], Any], *, pickled: bool | None = None) -> Any:
    """Run one of transformers' loaders; its failures become one sentence with what may help.

    Without ``pickled``, it is not about weights.
    """
    try:
        with quiet():
            return action()
    except (SourceError, MissingPackageError):
        raise
    except Exception as error:  # whatever a foreign folder makes the loaders raise
        reason = shorten(f"{type(error).__name__}: {error}", _LONG, placeholder=" …").rstrip(".")
        folder, advice = Path(name).expanduser(), ""
        if not folder.exists():
            advice = (
                " There is no such folder here; give one, or a Hub id that is cached or while the "
                "Hub can be reached."
            )
            if name not in BUILTIN and (close := get_close_matches(name.lower(), BUILTIN)):
                advice = f" Did you mean {' or '.join(close)}?{advice}"
            if name in BUILTIN:
                advice += (
                    f" {name!r} is built in: its architecture needs no weights (at_init=True, "
                    f"--at-init, or {name}@init to compare)."
                )
        elif folder.is_dir() and pickled is not None and not any(folder.glob("*.safetensors")):
            advice = " Weights must be safetensors; pickle files need pickled=True (--pickled)."
            if pickled:
                advice = (
                    " A pickle file may hold weights and nothing else; save the model as "
                    "safetensors."
                )
        raise SourceError(f"{name} could not be loaded ({reason}).{advice}") from error


def another_tokenizer(tokenizer: Any) -> Any:
    """A tokeniser that was asked for, if any: of another folder or Hub id, or one at hand."""
    if tokenizer is None:
        return None
    if isinstance(tokenizer, str | Path):
        path = Path(tokenizer).expanduser()
        name = str(path) if path.is_dir() else str(tokenizer)
        place = {"local_files_only": True} if path.is_dir() else _where(name)
        found = _tokenizer(name, {"trust_remote_code": False, **place})
        if found is None:
            raise SourceError(f"{name} holds no tokeniser that knows any word.")
        return found
    if not callable(tokenizer):
        raise KindError(
            f"tokenizer is a {type(tokenizer).__name__}, expected a folder, a Hub id or a "
            "tokeniser of transformers."
        )
    return _ready_to_pad(tokenizer)


def _tokenizer(name: str, options: dict[str, Any]) -> Any:
    """The tokeniser of a folder or Hub id, ready to pad; None if there is none."""
    tokenizer = _optional("AutoTokenizer", name, options)
    if tokenizer is None or len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        return None  # without a vocabulary file, transformers makes one up that knows no word
    return _ready_to_pad(tokenizer)


def _ready_to_pad(tokenizer: Any) -> Any:
    if getattr(tokenizer, "pad_token", "") is None:
        tokenizer = copy.deepcopy(tokenizer)  # the caller's own stays as it is
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _optional(kind: str, name: str, options: dict[str, Any]) -> Any:
    if is_gguf(name):
        name, options = str(Path(name).parent), {**options, "gguf_file": Path(name).name}
    auto = getattr(require("transformers"), kind)
    try:
        with quiet():
            return auto.from_pretrained(name, **options)
    except Exception:  # there is none, or none that can be read; texts are refused then
        return None


@contextmanager
def quiet() -> Iterator[None]:
    """No advice from the loaders on standard error: what matters becomes an error of ours."""
    if not is_installed("transformers"):
        yield
        return
    logging = require("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    offloading = getLogger("accelerate.big_modeling")
    before, offloading.disabled = offloading.disabled, True
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        offloading.disabled = before
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
