"""Names for what a figure was made from."""

from rankscope.process.fingerprints import fingerprint


def test_equal_content_has_one_name_and_any_change_another():
    name = fingerprint({"a": 1, "b": [2.0]})
    assert name == fingerprint({"b": [2.0], "a": 1})
    assert len(name) == 12
    assert len({name, fingerprint({"a": 2, "b": [2.0]}), fingerprint({"a": 1, "b": [2]})}) == 3
