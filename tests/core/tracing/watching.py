"""Attention of a model, heard for the time of a context."""

from contextlib import contextmanager

from rankscope.core.tracing._attention import AttentionWatch
from rankscope.core.tracing._left_as_found import LeftAsFound


@contextmanager
def watched_attention(callback, model):
    """Call ``callback(module, scores)`` for each self-attention, and judge the readings."""
    watch = AttentionWatch(callback, model)
    with LeftAsFound() as found, found, found, found:
        watch.listen(found)
        yield watch
    watch.judge()
