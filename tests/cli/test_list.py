"""What goes by a name is listed, all of it and nothing else."""

import json
import sys

import pytest
import torch

from rankscope.core.masks import NAMES, as_mask
from rankscope.core.network import NORMS, SCORES
from rankscope.core.tracing import MEASURES
from rankscope.experiments.catalogue import entries
from rankscope.models.families import BUILTIN
from rankscope.process import DISTRIBUTIONS
from rankscope.show.figures import FIGURES

KNOWN = {
    "models": list(BUILTIN),
    "metrics": list(MEASURES),
    "masks": list(NAMES),
    "scores": [each.words for each in SCORES.values()],
    "norms": list(NORMS),
    "claims": list(entries("claim")),
    "studies": list(entries("study")),
    "figures": list(FIGURES),
    "versions": ["rankscope", "python", "system", *DISTRIBUTIONS],
}


@pytest.mark.parametrize("kind", KNOWN)
def test_every_kind_is_listed_whole(rankscope, kind: str) -> None:
    lines = rankscope("list", kind).stdout.splitlines()
    told = json.loads(rankscope("list", kind, "--json").stdout)
    assert [each["name"] for each in told] == KNOWN[kind]
    assert all(each["words"] for each in told)
    assert len(lines) == len(KNOWN[kind])
    assert all(line.startswith(name) for line, name in zip(lines, KNOWN[kind], strict=True))
    assert not any("``" in line for line in lines)


def test_all_kinds_at_once(rankscope) -> None:
    lines = rankscope("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(KNOWN)
    assert all(f"'rankscope list {kind}'" in line for kind, line in zip(KNOWN, lines, strict=True))
    told = json.loads(rankscope("list", "--json").stdout)
    assert {kind: [each["name"] for each in named] for kind, named in told.items()} == KNOWN


def test_versions_are_those_that_are_installed(rankscope) -> None:
    told = {
        each["name"]: each["words"]
        for each in json.loads(rankscope("list", "versions", "--json").stdout)
    }
    assert told["torch"] == torch.__version__
    assert told["python"] == sys.version.split()[0]
    assert set(told) - set(DISTRIBUTIONS) == {"rankscope", "python", "system"}
    missing = {name for name, words in told.items() if words == "not installed"}
    assert missing <= {"pandas", "lightning", "triton"}  # neither is needed by the tests


def test_a_listed_mask_can_be_used_as_written(rankscope) -> None:
    for each in json.loads(rankscope("list", "masks", "--json").stdout):
        assert as_mask(each["usage"].split(" ")[0])


def test_an_unknown_kind_is_told_the_known_ones(refuses) -> None:
    assert "'models', 'metrics'" in refuses("list", "colours")
