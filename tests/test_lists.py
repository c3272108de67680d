"""The docs and CHANGELOG list what the catalogues list."""

import importlib.util
from pathlib import Path

import pytest

from rankscope.experiments.catalogue import ENTRIES

ROOT = Path(__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location("write_lists", ROOT / "tools" / "write_lists.py")
write_lists = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(write_lists)


@pytest.mark.parametrize("name", write_lists.FILES)
def test_lists_are_in_step(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "<!-- list:" in text
    assert write_lists.written(text) == text, "run 'make lists'"


def test_a_list_out_of_step_is_seen():
    text = "<!-- list: studies -->\n| old |\n<!-- end -->"
    assert write_lists.written(text) != text
    assert "| `widths` |" in write_lists.written(text)


def test_every_claim_and_study_is_in_the_guide():
    text = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    for entry in ENTRIES:
        if entry.kind != "question":
            assert entry.title in text
