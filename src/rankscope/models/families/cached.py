"""What of the Hub is on this machine already."""

from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from rankscope.arguments import checked

_WEIGHTS = "model.safetensors"


@checked
def cached_folder(hub_id: str) -> Path | None:
    """The folder of a model whose weights were downloaded before; None if there is none."""
    try:
        found = try_to_load_from_cache(hub_id, _WEIGHTS)
    except HFValidationError:  # no id of the Hub: a folder that is not there, for instance
        return None
    return Path(found).parent if isinstance(found, str) else None
