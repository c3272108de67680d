"""Every rule stands in the documentation, word for word, and every threshold is used."""

import ast
import io
from pathlib import Path

import pytest
from rich.console import Console

import rankscope
from rankscope.core.theory import thresholds
from rankscope.experiments.diagnosis import RULES
from rankscope.models import text
from rankscope.show import report
from rankscope.show.report._prose import address

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rules_are_documented_as_they_are_printed(rule) -> None:
    documented = (ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8")
    assert f"| {rule.name} | {rule.text} |" in documented


def test_every_surface_names_the_page_of_the_rule_that_is_met(tmp_path: Path) -> None:
    net = rankscope.Network.random(rankscope.Spec(6, 2, 16, mlp_ratio=0, skip=False), seed=0)
    found = rankscope.diagnose(net, text.passages()[:4], chapters=())
    assert [finding.url for finding in found.findings] == [rule.url for rule in RULES]
    met = next(finding for finding in found.findings if finding.fate == "collapse")
    absent = next(finding for finding in found.findings if finding.fate == "absent")
    for full in (False, True):
        console = Console(file=io.StringIO(), width=100)
        report.show(found, console, full=full)
        assert met.url in console.file.getvalue()
        assert absent.url not in console.file.getvalue()
    assert report.to_json(found)["findings"][0]["url"] == RULES[0].url
    assert met.url in found._repr_html_()
    page = report.write_html(report.page(found), tmp_path / "page.html")
    assert met.url in page.read_text("utf-8")


def test_an_address_of_a_site_is_a_link() -> None:
    assert str(address("https://example.org/<a>")).startswith('<a href="https://example.org/&lt;a')
    assert str(address("javascript:alert(1)")) == "javascript:alert(1)"


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
