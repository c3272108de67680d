"""Every error, alarm and finding names the page that explains it, and the page is there."""

import copy
import pickle
import re
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest

from rankscope import errors, version
from rankscope.errors import InputError, RankscopeError
from rankscope.experiments.diagnosis import RULES
from rankscope.monitor import RULES as ALARMS
from rankscope.version import documentation

DOCS = Path(__file__).parents[1] / "docs"
CLASSES = {name for name, value in vars(errors).items() if isinstance(value, type)}
NAMES = {"errors": CLASSES, "alarms": set(ALARMS), "rules": {rule.name for rule in RULES}}


@pytest.fixture
def published(monkeypatch):
    """A package that was installed with an address of its documentation."""
    listed = Message()
    listed["Project-URL"] = "Source, https://example.org/code"
    listed["Project-URL"] = "Documentation, https://example.org/docs/"
    monkeypatch.setattr(metadata, "metadata", lambda _: listed)
    version._site.cache_clear()
    yield "https://example.org/docs"
    version._site.cache_clear()


@pytest.mark.parametrize("page", NAMES)
def test_all_of_them_have_a_section_and_a_line_in_its_list(page):
    text = (DOCS / f"{page}.md").read_text("utf-8")
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) == NAMES[page]
    listed = {documentation(page, name).partition("#")[2] for name in NAMES[page]}
    assert set(re.findall(r"^\| \[[^]]+\]\(#([^)]+)\)", text, re.MULTILINE)) == listed


@pytest.mark.parametrize("name", ["alarms", "rules", "errors"])
def test_sections_say_what_to_do(name):
    sections = re.split(r"^### ", (DOCS / f"{name}.md").read_text("utf-8"), flags=re.MULTILINE)
    assert len(sections) > 10
    assert [text.splitlines()[0] for text in sections[1:] if "**What to do:**" not in text] == []


def test_an_error_has_one_note_and_its_message_is_as_it_was():
    error = InputError("x is nan.")
    assert str(error) == "x is nan."
    assert error.__notes__ == ["See docs/errors.md#inputerror"]
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (str(again), again.__notes__) == (str(error), error.__notes__)


def test_an_error_of_another_module_leads_to_its_nearest_parent():
    class OtherError(InputError):
        pass

    assert OtherError().__notes__ == InputError().__notes__
    assert RankscopeError().__notes__ == ["See docs/errors.md#rankscopeerror"]


def test_links_lead_to_the_site_once_it_has_an_address(published):
    assert InputError().__notes__ == [f"See {published}/generated/errors/inputerror.html"]
    assert ALARMS["rank-collapse"].url == f"{published}/generated/alarms/rank-collapse.html"
    assert RULES[0].url == f"{published}/generated/rules/depth-collapse.html"


def test_a_package_that_is_not_installed_has_its_documents(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "metadata", missing)
    version._site.cache_clear()
    try:
        assert documentation("rules", "dead sublayer") == "docs/rules.md#dead-sublayer"
    finally:
        version._site.cache_clear()
