"""Attention of a model, heard for the time of a context."""

from contextlib import contextmanager

from rankscope.core.tracing._attention import AttentionWatch
from rankscope.core.tracing._temporary_changes import TemporaryChanges


@contextmanager
def watched_attention(callback, model):
    """Call ``callback(module, scores)`` for each self-attention, and judge the readings."""
    watch = AttentionWatch(callback, list(model.modules()))
    with TemporaryChanges() as changes, changes, changes, changes:
        watch.listen(changes)
        yield watch
    watch.judge()
