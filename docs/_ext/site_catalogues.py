"""Pages written from catalogues: commands, metrics, claims, alarms, rules and errors."""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from rankscope import errors
from rankscope.cli import app
from rankscope.experiments.catalogue import Entry, entries
from rankscope.experiments.diagnosis import RULES
from rankscope.metric_catalogue import METRICS, Metric
from rankscope.monitor import RULES as ALARMS
from site_reference import markdown

DOCS = Path(__file__).parents[1]
CLAIM_IMAGES = DOCS / "images" / "claims"


def cell(text: str) -> str:
    """A text for a cell of a table, on one line and without a character that has a meaning.

    >>> cell("a | b <c>")
    'a \\\\| b \\\\<c>'
    """
    return " ".join(text.split()).replace("|", r"\|").replace("<", r"\<").replace("[", r"\[")


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown, of cells that are written already."""
    head = list(header)
    lines = [head, ["---"] * len(head), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# Commands.


def commands() -> str:
    """Every command with its options, from the command line itself."""
    sections = [_command("rankscope", name, command) for name, command in _commands().items()]
    return (
        "# Commands\n\n"
        "`rankscope COMMAND --help` prints the same in a terminal. "
        "[The guide](../guide.md#command-line) has the options that all commands share, and what "
        "exit codes mean.\n\n" + "\n\n".join(sections) + "\n"
    )


def _commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    listed: dict[str, Any] = {}
    for name, command in group.commands.items():
        listed[name] = command
        inner = getattr(command, "commands", {})
        listed |= {f"{name} {part}": of for part, of in inner.items()}
    return listed


def _command(program: str, name: str, command: Any) -> str:
    context: Any = typer.Context(command, info_name=f"{program} {name}")
    rows = []
    for parameter in command.params:
        usage, text = parameter.get_help_record(context) or ("", "")
        if usage and "--help" not in usage:
            rows.append((f"`{usage}`".replace("|", r"\|"), cell(text)))
    options = table(("option", "meaning"), rows) if rows else ""
    text = markdown(textwrap.dedent(command.help or "").replace("\b", ""))
    return f"## {name}\n\n{text}\n\n{options}"


# Metrics.


def metrics() -> str:
    """Every metric with formula and picture, and when it misleads."""
    traced = [metric for metric in METRICS.values() if metric.compute]
    others = [metric for metric in METRICS.values() if not metric.compute]
    rows = [(f"`{m.name}`", m.title, cell(m.symbol), cell(m.definition)) for m in others]
    return (
        "# Metrics\n\n"
        "X is the matrix of tokens, res(X) what is left of it after the center is subtracted from "
        "every token, P an attention matrix, σ singular values. Words are those of the "
        "[glossary](../glossary.md). A trace computes the metrics of the first part by name: "
        '`rankscope.trace(model, inputs, metrics=["stable_rank"])`. Each picture shows the metric '
        "on the same text in two random networks of 12 layers: one with skip connections, and the "
        "same weights without.\n\n## Metrics of a trace\n\n"
        + "\n\n".join(_metric(metric) for metric in traced)
        + "\n\n## Metrics of other results\n\nMeasured by paths, bounds, predictions and the other "
        "questions, each under its own name in the table.\n\n"
        + table(("metric", "name", "formula", "definition"), rows)
        + "\n"
    )


def _metric(metric: Metric) -> str:
    direction = {"down": "It falls as tokens become alike.", "up": "It rises as they do."}
    lines = [
        f"### {metric.name}",
        f"**{metric.title}**, {cell(metric.symbol)}. {cell(metric.definition)}",
        f"{cell(metric.meaning)}. {direction.get(metric.collapse, '')}",
        f"```{{chart}} metric-{metric.name}\n:alt: {metric.title} by layer, of a network with skip "
        "connections and of the same network without\n```",
        f"**When it misleads.** {cell(metric.misleads)}",
    ]
    return "\n\n".join(lines)


# Claims.


class Verdict(NamedTuple):
    """A row of docs/reproduced.md."""

    claim: str
    stated: str
    beyond: str
    seeds: str
    figure: str
    seconds: str


def verdicts() -> dict[str, Verdict]:
    """How every claim ended, by its id, from the page that ``make reproduced`` writes."""
    text = (DOCS / "reproduced.md").read_text(encoding="utf-8")
    listed = re.search(r"<!-- verdicts -->(.*?)<!-- end -->", text, re.DOTALL)
    assert listed, "docs/reproduced.md has no verdicts"
    rows = [
        re.split(r"(?<!\\)\|", line)[1:-1] for line in listed[1].splitlines() if line[:1] == "|"
    ]
    return {row[0].strip(): Verdict(*(part.strip() for part in row[1:])) for row in rows[2:]}


def short_verdict(verdict: Verdict) -> str:
    """A verdict in a few words; what it leaves out is said, never dropped.

    >>> short_verdict(Verdict("", "**Supported for a; not for b** (c)", "", "", "", ""))
    'Supported in part'
    >>> short_verdict(Verdict("", "**Supported up to 1** (c)", "", "", "", ""))
    'Supported, with limits'
    """
    bold = re.match(r"\*\*(.*?)\*\*", verdict.stated, re.DOTALL)
    words = (bold[1] if bold else verdict.stated).strip()
    if not words.startswith("Supported"):
        return words.split(":")[0].split(" for ")[0]
    if re.search(r"\bin part\b|\bnot for\b|\bexcept for\b", words):
        return "Supported in part"
    if "not tested" in words:
        return "Supported; partly not tested"
    return "Supported" if re.match(r"Supported($|:)", words) else "Supported, with limits"


def claims() -> dict[str, str]:
    """A page for every claim, and one that lists them."""
    ended = verdicts()
    listed = entries("claim")
    rows = [
        (f"[{id_}]({id_.lower()}.md)", cell(entry.title), entry.source, short_verdict(ended[id_]))
        for id_, entry in listed.items()
    ]
    index = (
        "# Claims\n\nEvery claim of the papers that rankscope re-checks. "
        "[Claim by claim](../../reproduced.md) has all verdicts in one table, and what was "
        "measured near the papers' own sizes.\n\n"
        + table(("id", "claim", "from", "verdict as stated"), rows)
        + "\n\n```{toctree}\n:hidden:\n\n"
        + "\n".join(f"{id_} <{id_.lower()}>" for id_ in listed)
        + "\n```\n"
    )
    return {"index": index} | {
        id_.lower(): _claim(entry, ended[id_]) for id_, entry in listed.items()
    }


def _claim(entry: Entry, verdict: Verdict) -> str:
    module = entry.module()
    judge = inspect.getsource(module.judge)
    where = f"src/rankscope/experiments/claims/{entry.id.lower()}.py"
    rows = [("as stated", entry.domain, verdict.stated)]
    if verdict.beyond:
        rows.append(("beyond it", entry.beyond, verdict.beyond))
    parts = [
        f"# {entry.id}: {_first_words(entry.title)}",
        f"> {cell(entry.title)}\n>\n> {cell(entry.source)}",
        cell(entry.question),
        "## Verdict",
        table(("", "domain", "verdict"), rows),
        f"Over seeds: {verdict.seeds or 'one'}. Key figure: {verdict.figure or 'none'}.",
        _claim_figure(entry.id),
        "## How it is measured",
        markdown(inspect.getdoc(module) or ""),
        markdown(inspect.getdoc(module.measure) or ""),
        _settings(module.Config),
        "## What would change it",
        "The verdict is computed and not written by hand: it is *supported* if every check holds, "
        "*supported in part* if some do, and *not supported* if none does. "
        + markdown(inspect.getdoc(module.judge) or ""),
        "Try to change it: another seed, the papers' sizes, or a model of yours where the claim "
        f"takes one.\n\n```sh\nrankscope reproduce {entry.id} --seed 7\n"
        f"rankscope reproduce {entry.id} --scale paper\n```",
        f"## Code\n\n`{where}`; the function that decides:\n\n```python\n{judge}```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _claim_figure(id_: str) -> str:
    """The figure that ``make reproduced`` drew; the beginning of its file describes it."""
    image = CLAIM_IMAGES / f"{id_.lower()}.svg"
    assert image.is_file(), f"{id_} has no figure; see tools/draw_claims.py"
    words = re.match(r"<!-- (.*?) -->", image.read_text(encoding="utf-8"), re.DOTALL)
    assert words, f"{image} does not describe itself"
    alt = " ".join(words[1].split())
    return (
        f"## Figure\n\n```{{chart}} {image.relative_to(DOCS)}\n:alt: {alt}\n\n"
        f"Made by `rankscope reproduce {id_}`; its page has the other figures.\n```"
    )


def _first_words(title: str) -> str:
    words = title.split()
    return cell(" ".join(words[:9]) + (" …" if len(words) > 9 else ""))


def _settings(config: Any) -> str:
    rows = [
        (f"`{field.name}`", f"`{cell(str(field.default))}`")
        for field in dataclasses.fields(config)
        if field.default is not dataclasses.MISSING and len(str(field.default)) < 90
    ]
    return "Sizes of the quick scale:\n\n" + table(("setting", "value"), rows) if rows else ""


# Alarms, rules of a diagnosis, and errors: a page each, to which messages point.

PAGED = ("alarms", "rules", "errors")
"""Documents whose sections are pages of their own on the site."""
_SECTIONS = re.compile(r"^## (?:Rules|Rules by name|Errors by name)\n(.*?)(?=^## |\Z)", re.M | re.S)


def sections(name: str) -> dict[str, str]:
    """The sections of a document that has one for each alarm, rule or error, by their headings."""
    listed = _SECTIONS.search((DOCS / f"{name}.md").read_text(encoding="utf-8"))
    assert listed, f"docs/{name}.md has no sections"
    parts = re.split(r"^### (.+)\n", listed[1], flags=re.MULTILINE)
    return {head: text.strip() for head, text in zip(parts[1::2], parts[2::2], strict=True)}


def described() -> dict[str, str]:
    """A page for every alarm, rule and error: its section, with what its code says."""
    more = {
        "alarms": {
            name: (f"Alarm: {rule.title[:1].lower()}{rule.title[1:]}", "", "")
            for name, rule in ALARMS.items()
        },
        "rules": {
            rule.name: (f"Rule: {rule.name}", f"**Found** if {cell(rule.text)}.", "")
            for rule in RULES
        },
        "errors": {kind.__name__: (kind.__name__, *_raised(kind)) for kind in _error_classes()},
    }
    whole = {
        "alarms": "Raised by [a monitor](../../monitor.md), which logs it as `{0}`. "
        "[All alarms](../../alarms.md), and how they begin and end.",
        "rules": "A rule of [a diagnosis](../../diagnose.md). [All rules](../../rules.md).",
        "errors": "`rankscope.errors.{0}`. [All errors](../../errors.md).",
    }
    pages = {}
    for name in PAGED:
        for head, text in sections(name).items():
            title, said, shown = more[name][head]
            body = re.sub(r"\]\((?=[\w#])", lambda _: "](../../", text)
            body = body.replace("](../../http", "](http").replace(
                "](../../#", f"](../../{name}.md#"
            )
            meaning, _, rest = body.partition("\n\n")
            parts = (f"# {title}", meaning, said, rest, shown, "---", whole[name].format(head))
            pages[f"{name}/{page_name(head)}"] = "\n\n".join(filter(None, parts)) + "\n"
    return pages


def page_name(head: str) -> str:
    """The file of a page, and the anchor of the heading on GitHub.

    >>> page_name("depth collapse"), page_name("ShapeError")
    ('depth-collapse', 'shapeerror')
    """
    return head.lower().replace(" ", "-")


def without_sections(name: str, text: str) -> str:
    """A document whose sections are pages: the list of them in their place."""
    listed = "\n".join(f"generated/{name}/{page_name(head)}" for head in sections(name))
    toctree = f"```{{toctree}}\n:hidden:\n\n{listed}\n```\n\n"
    return _SECTIONS.sub(lambda _: toctree, text)


def link_sections(docname: str, text: str) -> str:
    """Links to sections that are pages of their own lead there."""
    if docname in PAGED:
        text = text.replace("](#", f"]({docname}.md#")
    known = {f"{name}.md#{page_name(head)}" for name in PAGED for head in sections(name)}

    def link(match: re.Match[str]) -> str:
        up, name, anchor = match.groups()
        if f"{name}.md#{anchor}" not in known:
            return match[0]
        return f"]({up}generated/{name}/{anchor}.md)"

    return re.sub(rf"\]\(((?:\.\./)*)({'|'.join(PAGED)})\.md#([\w-]+)\)", link, text)


def _error_classes() -> Iterator[type]:
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.RankscopeError):
            yield value


def _raised(kind: type) -> tuple[str, str]:
    """The classes an error belongs to, and what raises it, from its docstring."""
    bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
    blocks = re.split(r"\n\s*\n", inspect.getdoc(kind) or "")
    examples = [markdown(block) for block in blocks if block.lstrip().startswith(">>>")]
    return f"A kind of {bases}.", "\n\n".join(["## Example", *examples] if examples else [])


# Tables of the landing page.


def model_table() -> str:
    """How many architectures are traced, diagnosed and converted, from docs/models.md."""
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    counts = re.search(r"\| \| \|\n\|---\|---\|\n((?:\|.*\|\n)+)", text)
    assert counts, "docs/models.md has no table of counts"
    rows = [line.strip("|").split("|") for line in counts[1].splitlines()]
    return table(("of Transformers", "architectures"), ([part.strip() for part in r] for r in rows))


def verdict_table() -> str:
    """How the claims ended: every claim with the first words of its verdict."""
    ended = verdicts()
    rows = [
        (
            f"[{id_}](generated/claims/{id_.lower()}.md)",
            cell(entry.title),
            f"**{short_verdict(ended[id_])}**",
        )
        for id_, entry in entries("claim").items()
    ]
    return table(("", "claim", "as stated"), rows)
