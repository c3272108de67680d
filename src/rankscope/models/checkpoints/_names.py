"""Which files a model's name stands for: a folder, a step of a training run, a GGUF file.

Transformers is not imported here, so that a name can be looked up before a model is needed.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

from rankscope.errors import SourceError
from rankscope.process import fingerprint, folder_fingerprint, is_path

_STEP: Final = re.compile(r"(?:checkpoint|step)[-_]?([0-9]{1,18})(?:-tokens\w*)?")
"""Names of folders: those of Transformers' Trainer, of Accelerate, and of OLMo."""
INIT: Final = "@init"
"""What makes a name that of the architecture at initialisation, in a comparison."""
_LONGEST_NAME: Final = 255
_LARGEST_JSON: Final = 2**26
"""Bytes of a configuration or index; the index of a model of 10^12 parameters is smaller."""


def resolve_checkpoint(name: str, *, latest: bool = True) -> str:
    """The folder that a model's name stands for; a name without a step is returned as it is.

    >>> resolve_checkpoint("bert-base")
    'bert-base'

    ``FOLDER@1200`` is the checkpoint of step 1200 in the folder of a training run. A folder that
    has checkpoints and no model of its own stands for the latest of them, unless ``latest=False``.
    """
    folder = _folder(name)
    if folder is not None:
        checkpoints = checkpoints_in(folder) if latest else []
        if holds_model(folder):
            return name
        return str(_only(folder, checkpoints, step_of(checkpoints[-1]))) if checkpoints else name
    parent, at, step = name.rpartition("@")
    if not at or not parent:
        return name
    if at + step == INIT:
        raise SourceError(
            f"{name}: only compare reads {INIT}; elsewhere give {parent} and at_init=True "
            "(--at-init)."
        )
    folder = _folder(parent)
    if folder is None:
        if is_path(parent):
            raise SourceError(f"there is no folder {parent}, so there is no step {step} in it.")
        return name
    checkpoints = checkpoints_in(folder)
    if not checkpoints:
        raise SourceError(
            f"{parent} has no checkpoints (folders such as checkpoint-500 or step_500), so there "
            f"is no step {step}."
        )
    steps = [step_of(path) for path in checkpoints]
    if not (step.isascii() and step.isdigit() and len(step) < 19 and int(step) in steps):
        listed = ", ".join(map(str, dict.fromkeys(steps)))
        raise SourceError(f"{parent} has no step {step[:40]!r}; its steps are {listed}.")
    return str(_only(folder, checkpoints, int(step)))


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints of a training run, in the order of their steps."""
    try:
        paths = [path for path in folder.iterdir() if step_of(path) is not None and path.is_dir()]
    except OSError as error:
        raise SourceError(f"{folder} cannot be read: {error.strerror}.") from None
    return sorted(paths, key=lambda path: (step_of(path), path.name))


def step_of(folder: Path) -> int | None:
    """The step of a checkpoint, by its name; None for other folders.

    >>> step_of(Path("run/checkpoint-500")), step_of(Path("step1000-tokens4B")), step_of(Path("a"))
    (500, 1000, None)
    """
    match = _STEP.fullmatch(folder.name)
    return int(match[1]) if match else None


def holds_model(folder: Path) -> bool:
    """Whether a folder itself has a model or an adapter, whatever its subfolders have."""
    return any((folder / file).is_file() for file in ("config.json", "adapter_config.json"))


def base_of_adapter(folder: Path) -> str | None:
    """The model that the adapter in a folder belongs to; None if there is no adapter."""
    if not (folder / "adapter_config.json").is_file():
        return None
    base = read_json(folder / "adapter_config.json").get("base_model_name_or_path")
    if not isinstance(base, str) or not base.strip() or "\0" in base or len(base) > _LONGEST_NAME:
        raise SourceError(
            f"{folder} is an adapter that does not name its model; write it into "
            "adapter_config.json as base_model_name_or_path."
        )
    # A relative path may also start at the adapter.
    found = _folder(base) or _folder(str(folder / base))
    return base if found is None else str(found)


def model_fingerprint(location: Path) -> str:
    """A fingerprint of a model's files; of an adapter, its model's files belong to it."""
    own, base = folder_fingerprint(location), None
    if location.is_dir():
        try:
            base = base_of_adapter(location)
        except SourceError:  # loading it says so
            return own
    below = None if base is None else _folder(base)
    if base is None:
        return own
    return fingerprint([own, base if below is None else folder_fingerprint(below)])


def read_json(path: Path) -> dict[str, Any]:
    """The table in a JSON file; empty if it holds something else."""
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise SourceError(f"{path} is larger than any configuration; it is not read.")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{path} cannot be read as JSON: {error}.") from None
    return content if isinstance(content, dict) else {}


def _only(folder: Path, checkpoints: list[Path], step: int | None) -> Path:
    """The checkpoint of a step, if one folder has it."""
    chosen = [path for path in checkpoints if step_of(path) == step]
    if len(chosen) > 1:
        names = " and ".join(path.name for path in chosen)
        raise SourceError(f"{folder} has step {step} twice, {names}; name the folder itself.")
    return chosen[0]


def _folder(name: str) -> Path | None:
    """The folder of that name, if it exists."""
    try:
        path = Path(name).expanduser()
        return path if path.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # too long, or the home directory is unknown
        return None
