"""What of an input can be judged, and which drawings have anything to draw."""

from dataclasses import replace

import polars as pl
import torch

from rankscope.core.batches import Batch
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.diagnosis._measure import counted_tokens, real_tokens
from rankscope.numerals import plural
from rankscope.results import Drawing, Part


def usable(subject: kit.Subject) -> tuple[kit.Subject, tuple[str, ...]]:
    """The samples with two tokens or more that count, and a warning about the others."""
    batch = Batch(0, subject.x, subject.token_mask, subject.measured)
    real, counted = real_tokens(batch), counted_tokens(batch)
    kept = counted.sum(-1) >= 2
    if bool(kept.all()):
        return subject, ()
    if not bool(kept.any()):
        raise InputError(
            "no sample has two tokens that count, so that there is nothing to tell apart; give "
            "longer texts (or count special tokens)."
        )
    check = subject.check
    some = replace(
        subject,
        x=subject.x[kept],
        token_mask=real[kept],
        measured=None if subject.measured is None else counted[kept],
        check=None if check is None else check.of_samples(torch.nonzero(kept).flatten().tolist()),
    )
    left = int((~kept).sum())
    return some, (
        f"Left out: {left:,} of {plural(len(kept), 'sample')}, with fewer than two tokens that "
        "count.",
    )


def present(part: Part, table: pl.DataFrame) -> Part:
    """A part without drawings for which there are no rows, as of attention to one token only."""
    return replace(part, drawings=tuple(each for each in part.drawings if _drawable(each, table)))


def _drawable(drawing: Drawing, table: pl.DataFrame) -> bool:
    for column, labels in drawing.only.items():
        table = table.filter(pl.col(column).is_in(labels))
    wanted = [drawing.metric] if drawing.metric else drawing.options.get("metrics", [])
    return set(wanted) <= set(table["metric"])
