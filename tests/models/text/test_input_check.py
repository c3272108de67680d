"""What a model read, and when a reader is warned."""

import pytest

from rankscope.errors import InputError
from rankscope.models.text import InputCheck, Tokenizer, check_texts, embed


def read(unknown: int, known: int) -> InputCheck:
    """One sample of CLS, so many unknown and known words, and SEP."""
    words = ("[UNK]",) * unknown + ("word",) * known
    places = tuple(range(1, 1 + unknown))
    return InputCheck("text", (("[CLS]", *words, "[SEP]"),), ((0, 1 + unknown + known),), (places,))


@pytest.mark.parametrize(
    ("unknown", "known", "fits", "warned"),
    [
        (0, 20, True, False),
        (1, 10, True, False),  # 9.1 %
        (1, 9, True, True),  # 10 % from which on one is warned
        (5, 5, True, True),  # half is not most
        (6, 5, False, True),
        (155, 2, False, True),
    ],
)
def test_thresholds(unknown: int, known: int, fits: bool, warned: bool) -> None:
    check = read(unknown, known)
    assert check.unknown_count == unknown
    assert check.counted == unknown + known  # CLS and SEP are no words
    assert check.fits is fits
    assert bool(check.warnings()) is warned
    if warned:
        assert f"{unknown} of {unknown + known} tokens" in check.warnings()[0]


def test_unknown_tokens_count_though_tokenisers_call_them_special() -> None:
    check = InputCheck("text", (("[CLS]", "[UNK]", "a"),), ((0, 1),), ((1,),))
    assert (check.unknown_count, check.counted) == (1, 2)


def test_samples_that_do_not_fit_are_not_averaged_away() -> None:
    good, bad = ("a",) * 40, ("[UNK]", "[UNK]", "a")
    check = InputCheck("text", (good, bad), unknown=((), (0, 1)))
    assert check.unknown_share < 0.1
    assert check.unknown_shares == (0.0, 2 / 3)
    assert "In 1 of 2 samples most tokens are unknown" in check.warnings()[0]


def test_other_warnings() -> None:
    row = (("a", "b"),)
    assert InputCheck("text", row, lost=(2,)).warnings() == ()  # one asks for a length
    assert "images of noise" in InputCheck("noise images", row).warnings()[0]
    assert "1 of 2 samples has a single token" in InputCheck("ids", (*row, ("a",))).warnings()[0]


def test_counts() -> None:
    check = InputCheck("text", (("a", "b"), ("a",)), lost=(0, 4))
    assert (check.samples, check.lengths, check.cut, check.lost_count) == (2, (2, 1), 1, 4)
    assert check.describe() == (
        "2 samples of 1 to 2 tokens, from text; no token is unknown, 1 of 2 samples were cut, by "
        "4 tokens in all."
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": ()},
        {"tokens": (("a",),), "lost": (1, 2)},
        {"tokens": (("a",),), "unknown": ((1,),)},
        {"tokens": (("a",),), "special": ((-1,),)},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict) -> None:
    with pytest.raises(InputError):
        InputCheck("text", **wrong)


def test_embedded_texts_are_checked_as_they_are_embedded() -> None:
    """As many tokens as ``embed`` leaves, the same ones, and the rest is lost."""
    texts = ["ada lovelace wrote about zyx engines and music", "ada"]
    for length in (3, 6, 128):
        check = check_texts(texts, length=length)
        _, token_mask = embed(texts, 8, length=length)
        assert check.lengths == tuple(token_mask.sum(-1).tolist())
        tokenizer = Tokenizer.bundled()
        for text, tokens, lost in zip(texts, check.tokens, check.lost, strict=True):
            kept = [tokenizer.vocabulary[i] for i in tokenizer(text, length=length)]
            assert list(tokens) == kept
            assert lost == len(tokenizer(text)) - len(kept)
