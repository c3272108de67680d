"""From options to what is asked about; imported only once a command runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rankscope.ask import (
    CUBIC_METRICS,
    MOST_TOKENS_CUBED,
    Subject,
    random_subject,
)
from rankscope.cli.options import (
    FIELDS,
    ComparisonOptions,
    ExperimentOptions,
    QuestionOptions,
    names,
    refuse,
    taken,
    unused,
    written,
)
from rankscope.cli.printing import print_error
from rankscope.cli.reading import checked_count, sentences, texts, token_ids
from rankscope.core.checks import usable_device
from rankscope.core.masks import Mask, as_mask
from rankscope.core.network import ABLATIONS, Spec
from rankscope.errors import InputError
from rankscope.experiments.catalogue import Entry
from rankscope.experiments.usual import NORM_EPS

if TYPE_CHECKING:
    from rankscope.ask import Model

_OF_RANDOM_NETWORKS = (
    *("layers", "heads", "width", "mlp_ratio"),
    *("norm", "norm_place", "skip", "init"),
)


def subject(
    options: QuestionOptions,
    *,
    without: str = "",
    masks: Sequence[str] = (),
    unfit: bool = False,
) -> Subject:
    """The random network of the options, or the model that was named, less some parts.

    ``masks`` are those a command compares; the seed may be theirs. ``unfit`` is for a command that
    says itself what a text is worth of which the model knows hardly a word; others refuse it.
    """
    _check_common(options)
    parts = _parts(without)
    _refuse_about_missing(options, parts)
    found = _random(options) if options.model is None else _real(options, options.model, masks)
    if not unfit:
        _refuse_unfit(found)
    about = {key: words for key, words in found.about.items() if key not in parts}
    left_out = {"without": ", ".join(parts)} if parts else {}
    command = {"command": options.command} if options.command else {}
    return replace(found.without(*parts), about={**about, **left_out, **command})


def _refuse_unfit(found: Subject) -> None:
    if found.check is not None and not found.check.fits:
        raise InputError(
            f"{found.name}: {found.check.warnings()[0].rstrip('.')}; give text that fits (--text), "
            "or token ids (--ids)."
        )


def compared(options: ComparisonOptions, models: Sequence[str]) -> dict[str, Any]:
    """The fields of a comparison: those that are compared, and what all of them read."""
    _check_common(options)
    from rankscope.ask import compared_models

    found = compared_models(list(models))
    _refuse_two_inputs(options)
    drawn = [each for each in found if each.at_init]
    if "seed" in options.given and not drawn:
        raise InputError(f"--seed {options.seed} changes nothing: no model has @init behind it.")
    if options.pickled and len(drawn) == len(found):
        raise InputError("--pickled is about pretrained weights, and @init draws new ones.")
    return {
        "models": found,
        "texts": None if options.text is None else tuple(texts(options.text, options.passages)),
        "ids": None if options.ids is None else _rows(options.ids, options.passages),
        "samples": options.passages,
        "length": options.length,
        "special_tokens": options.special_tokens,
        "tokenizer": options.tokenizer,
        "pickled": options.pickled,
        "device": options.device,
        "dtype": options.dtype,
        "seed": options.seed,
        "limited": not options.yes,
    }


def _rows(path: Path, most: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in token_ids(path, most))


def _check_common(options: QuestionOptions | ComparisonOptions) -> None:
    if "precision" in options.given:
        raise InputError("--precision is called --dtype now, and also takes bfloat16 and float16.")
    checked_seed(options.seed)
    usable_device("--device", options.device)
    _length(options.length)
    checked_count(options.passages)


def _refuse_two_inputs(options: QuestionOptions | ComparisonOptions) -> None:
    if options.ids is not None and options.text is not None:
        raise InputError("--ids and --text are two inputs; give one of them.")
    if options.ids is not None and options.tokenizer is not None and options.special_tokens:
        raise InputError("--tokenizer has no use: --ids are tokens already.")


def masks(listed: Sequence[str], seed: int) -> tuple[Mask, ...]:
    """Masks by their names; one that is drawn and names no seed of its own follows ``seed``."""
    if not listed:
        raise InputError("--masks names none; try full,causal,window:8.")
    return tuple(as_mask(name, seed=seed) for name in listed)


def checked_seed(seed: int) -> int:
    """The seed, unless random numbers cannot start from it."""
    if not 0 <= seed < 2**63 - 2**20:  # some experiments count on from it
        raise InputError(f"--seed {seed} is out of range; use 0 to 2^62.")
    return seed


def affordable(metrics: Sequence[str], *, tokens: int) -> list[str]:
    """The metrics less those of every head that are cubic in many tokens; it is said which."""
    if tokens <= MOST_TOKENS_CUBED:
        return list(metrics)
    left_out = [name for name in metrics if name in CUBIC_METRICS]
    if left_out:
        print_error(
            f"left out of 'all', because {tokens} tokens make them slow: {', '.join(left_out)}; "
            "--metrics takes them by name."
        )
    return [name for name in metrics if name not in left_out]


def count_all_tokens(command: str, options: QuestionOptions, why: str) -> None:
    """Raise if special tokens are to be left out of figures that are about all tokens."""
    if not options.special_tokens:
        raise InputError(f"--no-special-tokens is not for {command}: {why}; leave it out.")


def configurations(
    command: str, chosen: Sequence[Entry], options: ExperimentOptions
) -> dict[Entry, dict[str, Any]]:
    """For each claim or study the fields that were chosen and that it has.

    An option that none of them takes is refused; one that only some take is for those.
    """
    takes = dict.fromkeys(each for entry in chosen for each in taken(entry))
    asked = " ".join([command, *(entry.id for entry in chosen)])
    also = ", ".join([*takes, "--output"]) + " and --json"
    refuse(asked, unused(chosen), options, f"it takes {also}.")
    return {entry: _fields(entry, options) for entry in chosen}


def _fields(entry: Entry, options: ExperimentOptions) -> dict[str, Any]:
    module = entry.module()
    make: dict[str, Callable[[], Any]] = {
        "seed": lambda: checked_seed(options.seed),
        "models": lambda: _cases(options, module.Config().models),
        "texts": lambda: tuple(texts(options.text, options.passages)),
        "sentences": lambda: sentences(options.text),
        "length": lambda: _length(options.length),
        "reading": lambda: replace(
            module.Config().reading,
            **{name: getattr(options, name) for name in options.given & {*FIELDS["reading"]}},
        ),
    }
    return {
        name: make[name]()
        for name in FIELDS
        if name in entry.options and options.given & {*FIELDS[name]}
    }


def _cases(options: ExperimentOptions, usual: Sequence["Model"]) -> tuple["Model", ...]:
    """Models to try: built-in ones at initialisation, and real ones with their weights."""
    from rankscope.ask import Model, built_in

    if options.pickled and not options.pretrained:
        raise InputError("--pickled is about --pretrained models, and none was named.")
    fresh = built_in(*names(options.models)) if "models" in options.given else tuple(usual)
    if options.pretrained:  # nothing has to stand in for a trained model then
        fresh = tuple(case for case in fresh if not case.trained_here)
    trained: dict[str, Model] = {}
    for one in options.pretrained or []:
        label, _, source = ("", "", one) if Path(one).is_dir() else one.rpartition("=")
        label = label or Path(source).name
        taken = sum(known == label or known.startswith(f"{label} ") for known in trained)
        label = f"{label} {taken + 1}" if taken else label
        trained[label] = Model(source, label=label, pickled=options.pickled)
    if not fresh and not trained:
        raise InputError("there is no model to try; name some with --models or --pretrained.")
    return (*fresh, *trained.values())


def _random(options: QuestionOptions) -> Subject:
    for name in ("at_init", "pickled", "tokenizer", "ids"):
        if name in options.given:
            raise InputError(f"{written(name)} is about a MODEL, and none was named.")
    spec = Spec(
        options.layers,
        options.heads,
        options.width,
        mlp_ratio=options.mlp_ratio,
        norm=options.norm,
        norm_place=options.norm_place,
        norm_eps=NORM_EPS,
        skip=options.skip,
        mask=as_mask("full" if options.mask is None else options.mask, seed=options.seed),
        init=_number(options.init),
    )
    found = random_subject(
        spec,
        texts(options.text, options.passages),
        length=options.length,
        seed=options.seed,
        dtype=getattr(torch, options.dtype),
        device=options.device,
        special_tokens=options.special_tokens,
        read_from=_origin(options),
    )
    return replace(found, about={**found.about, "init": options.init})


def _real(options: QuestionOptions, name: str, masks: Sequence[str]) -> Subject:
    from rankscope.ask import model_subject
    from rankscope.models.families import load

    for option in _OF_RANDOM_NETWORKS:
        if option in options.given:
            raise InputError(
                f"{written(option)} describes a random network, but a MODEL was named."
            )
    if options.at_init and options.pickled:
        raise InputError("--pickled is about pretrained weights, and --at-init draws new ones.")
    _refuse_two_inputs(options)
    loaded = load(
        name,
        init=options.at_init,
        seed=options.seed,
        dtype=getattr(torch, options.dtype),
        device=options.device,
        pickled=options.pickled,
        tokenizer=options.tokenizer,
    )
    _refuse_unused(options, masks, sees_images=loaded.sees_images)
    found = model_subject(
        loaded,
        None if options.text is None else texts(options.text, options.passages),
        ids=None if options.ids is None else token_ids(options.ids, options.passages),
        length=options.length if "length" in options.given else None,
        samples=options.passages,
        special_tokens=options.special_tokens,
        seed=options.seed,
        read_from="" if options.ids is None and options.text is None else _origin(options),
        pretrained=not options.at_init,
    )
    found = replace(found, about={**found.about, "dtype": str(found.x.dtype)})
    if options.mask is None:
        return found
    net = found.network.with_mask(as_mask(options.mask, seed=options.seed))
    return replace(found, network=net, about={**found.about, "mask": str(net.spec.mask)})


def _refuse_unused(options: QuestionOptions, masks: Sequence[str], *, sees_images: bool) -> None:
    """Raise if an option has no use for a model such as this one."""
    drawn = [each for each in (options.mask, *masks) if each is not None and _is_drawn(each)]
    if "seed" in options.given and not (options.at_init or sees_images or drawn):
        raise InputError(
            f"--seed {options.seed} changes nothing: {options.model} is pretrained and reads text; "
            "--at-init draws its weights anew."
        )
    for name in ("text", "length", "ids", "tokenizer"):
        if sees_images and name in options.given:
            raise InputError(f"{options.model} sees images, so {written(name)} has no use.")


def _is_drawn(name: str) -> bool:
    """Whether a mask depends on the seed."""
    return as_mask(name, seed=0) != as_mask(name, seed=1)


def _parts(without: str) -> list[str]:
    """Parts to leave out; a wrong one is found before any work is done."""
    listed = names(without)
    for name in listed:
        if name not in ABLATIONS:
            raise InputError(
                f"--without: a network has no part {name!r}; choose {', '.join(ABLATIONS)}."
            )
    return listed


def _refuse_about_missing(options: QuestionOptions, parts: Sequence[str]) -> None:
    """Raise if an option describes a part that the network is then asked about without."""
    described = {"norm": ("norm", "norm_place"), "mlp": ("mlp_ratio",), "skip": ("skip",)}
    for part, names_ in described.items():
        for name in names_:
            if part in parts and name in options.given:
                raise InputError(
                    f"{written(name)} changes nothing: --without leaves out {part} "
                    f"('{', '.join(parts)}'); say --without='' to keep every part."
                )
    if options.norm == "none" and "norm_place" in options.given:
        raise InputError("--norm-place changes nothing: --norm none has no norm to place.")


def _length(tokens: int) -> int:
    if not 3 <= tokens < 2**31:
        raise InputError(f"--length {tokens} is out of range; use 3 or more tokens.")
    return tokens


def _origin(options: QuestionOptions) -> str:
    given = options.ids or options.text
    return "bundled passages" if given is None else str(given)


def _number(init: str) -> str | float:
    """An initialisation's name, or the standard deviation it spells."""
    try:
        return float(init)
    except ValueError:
        return init
