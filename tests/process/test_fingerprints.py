"""Names for what a figure was made from."""

import pytest

from rankscope.errors import KindError
from rankscope.process.fingerprints import fingerprint, plain


def test_equal_content_has_one_name_and_any_change_another():
    name = fingerprint({"a": 1, "b": [2.0]})
    assert name == fingerprint({"b": [2.0], "a": 1})
    assert len(name) == 12
    assert len({name, fingerprint({"a": 2, "b": [2.0]}), fingerprint({"a": 1, "b": [2]})}) == 3


def test_what_has_no_text_is_refused():
    class Mute:
        def __str__(self):
            raise RuntimeError

    with pytest.raises(KindError, match="a Mute cannot be recorded: str\\(\\) of it raises"):
        plain(Mute())
