"""Every rule stands in the documentation, word for word, and every threshold is used."""

import ast
from pathlib import Path

import pytest

from rankscope.core.theory import thresholds
from rankscope.experiments.diagnosis import RULES

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rules_are_documented_as_they_are_printed(rule) -> None:
    documented = (ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8")
    assert f"| {rule.name} | {rule.text} |" in documented


def test_no_threshold_is_left_over() -> None:
    names = [name for name in vars(thresholds) if name.isupper()]
    used = {
        node.attr
        for path in (ROOT / "src" / "rankscope").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    assert names
    assert [name for name in names if name not in used] == []
