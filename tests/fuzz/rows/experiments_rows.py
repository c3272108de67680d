"""Families and experiments."""

import torch
import transformers
from table import add
from things import LAYERS, MASK, NET, TEXTS, X
from torch import nn

from rankscope import ask, experiments
from rankscope.models import families

BERT = families.BUILTIN["bert-base"]()
SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 600,
}
for each, value in SIZES.items():
    setattr(BERT, each, value)
ORIGINAL = transformers.BertModel(BERT).eval()
ORIGINAL.save_pretrained("checkpoint")
LOADED = families.load(ORIGINAL)
VIT = families.BUILTIN["vit-base"]()
for each, value in {**SIZES, "image_size": 8, "patch_size": 4}.items():
    setattr(VIT, each, value)
IMAGES = families.load(transformers.ViTModel(VIT).eval())
FAMILY = families.family_of(ORIGINAL)
ENCODER = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2, enable_nested_tensor=False
).eval()
ROW_IDS = torch.tensor([[1, 5, 9]])
PROBE = torch.tensor([[1, 5, 9, 4, 7]])
add(
    "families.load",
    families.load,
    source=ORIGINAL,
    device="cpu",
    dtype=torch.float64,
    revision=None,
    at_init=False,
    seed=0,
    pickled=False,
    trust_remote_code=False,
    device_map=None,
)
add(
    "families.load",
    families.load,
    source="checkpoint",
    device="cpu",
    dtype=torch.float32,
    revision=None,
    pickled=True,
)
add("families.verify", families.verify, model=LOADED)
add("families.check", families.check, family=FAMILY, model=ORIGINAL, probe=PROBE)
add(
    "families.check",
    lambda **fields: families.check(families.Family("own", **fields), ORIGINAL),
    model_types=("bert",),
    body="",
    layers="encoder.layer",
    roles={"query": "self.query"},
    expects={"is_decoder": False},
    token_axis=1,
    example=None,
)
add(
    "families.load",
    families.load,
    source=ORIGINAL,
    probe={"input_ids": PROBE},
    family=None,
    tower=None,
)
add("families.family_of", families.family_of, model=ORIGINAL)
add("families.cached_folder", families.cached_folder, hub_id="google-bert/bert-base-uncased")
add("families.Verification", families.Verification, family="bert", errors=(0.0,), tolerance=1e-5)
add(
    "families.Loaded",
    families.Loaded,
    network=LOADED.network,
    original=ORIGINAL,
    family=FAMILY,
    verification=LOADED.verification,
    name="mine",
    tokenizer=None,
    processor=None,
)
add("families.Loaded.inputs", LOADED.inputs, source=ROW_IDS, token_mask=ROW_IDS > 0)
add("families.Loaded.read", LOADED.read, source=ROW_IDS, token_mask=ROW_IDS > 0)
add("families.Loaded.arguments", LOADED.arguments, source=ROW_IDS, token_mask=ROW_IDS > 0)
add("families.Loaded.noise_images", IMAGES.noise_images, count=1, seed=0)
add("families.Loaded.reinitialised", LOADED.reinitialised, seed=1)
add("families.Loaded.embed", LOADED.embed, source=ROW_IDS, token_mask=ROW_IDS > 0)
add("families.Family.batch_first", FAMILY.batch_first, hidden=X)
SUBJECT = ask.Subject(NET, X, MASK)
D8 = experiments.CATALOGUE["D8"]
add(
    "ask.Model",
    ask.Model,
    source="bert-base",
    at_init=False,
    label="",
    pickled=False,
    trained_here=False,
    step=None,
    training="",
)
add("ask.Model.load", ask.Model("checkpoint").load, seed=0)
add(
    "experiments.Entry",
    experiments.Entry,
    id="a",
    kind="claim",
    title="b",
    question="c",
    source="",
    domain="",
    beyond="",
    options=("seed",),
    seconds=1.0,
    small=True,
    metrics=(),
)
add("experiments.Entry.configuration", D8.configuration, scale="quick", seed=1)
add("experiments.Entry.stem", D8.stem, config=D8.configuration())
add("experiments.Entry.provenance", D8.provenance, config=D8.configuration(), about="b")
add(
    "experiments.Entry.result",
    D8.result,
    config=D8.configuration(),
    question="a",
    sentences=["b"],
    table=LAYERS,
    title="c",
    about={"a": "b"},
    notes={"a": "b"},
)
add(
    "ask.Subject",
    ask.Subject,
    network=NET,
    x=X,
    token_mask=MASK,
    measured=MASK,
    title="a",
    about={"a": "b"},
    batch_size=1,
    check=None,
)
add("ask.Subject.without", SUBJECT.without, **{"*0": "skip"})
add("ask.Subject.to", SUBJECT.to, dtype=torch.float64)
add("ask.Subject.with_network", SUBJECT.with_network, network=NET)
add("ask.Subject.trace", SUBJECT.trace, metrics=("residual",))
add(
    "experiments.diagnose",
    experiments.diagnose,
    model=NET,
    inputs=X,
    token_mask=MASK,
    measured=MASK,
    parts="paper",
    batch_size=2,
    on_step=None,
)
add(
    "experiments.diagnose",
    experiments.diagnose,
    model=ENCODER,
    inputs=X,
    token_mask=MASK,
    measured=MASK,
    batch_size=2,
    seed=0,
    blocks="layers",
    layout="batch token feature",
    stream=None,
    output=None,
    fix=None,
)
add(
    "experiments.compare",
    experiments.compare,
    models=[SUBJECT, LOADED],
    inputs=[[1, 5, 9]],
    length=8,
    samples=1,
    special_tokens=True,
    seed=0,
    tokenizer=None,
    pickled=False,
    device="cpu",
    dtype="float32",
    on_step=None,
)
add(
    "experiments.advise",
    experiments.advise,
    model=NET.spec,
    inputs=X,
    token_mask=MASK,
    draws=1,
    candidates=1,
    confirmed=1,
    networks=1,
    seed=0,
    on_step=None,
)
add(
    "experiments.path_study",
    experiments.path_study,
    network=NET,
    x=X,
    token_mask=MASK,
    measured=None,
    count="attention",
    max_length=2,
    heads=True,
    batch_size=2,
    on_step=None,
)
add(
    "experiments.four_variants",
    experiments.four_variants,
    network=NET,
    parts="identity",
)
add("experiments.entries", experiments.entries, kind="claim")
add("experiments.entry", experiments.entry, id_="D8", kind="claim")
add("experiments.run", experiments.run, id_="D8", scale="quick", on_step=None, seed=3)
for one, options in {
    "D1": {
        "kinds": ("pure attention",),
        "layers": 2,
        "heads": 2,
        "width": 4,
        "init": 0.5,
        "tokens": 3,
        "samples": 1,
        "tolerance": 1e-9,
    },
    "D2": {"layers": 3, "heads": (1,), "scales": (0.25,), "width": 4, "tokens": 4, "samples": 1},
    "D3": {
        "layers": 3,
        "heads": 1,
        "gains": (1.0,),
        "draws": 1,
        "width": 4,
        "tokens": 4,
        "samples": 1,
        "activations": ("relu",),
        "init": "lecun",
        "mlp_ratio": 2.0,
    },
    "D4": {
        "layers": 3,
        "betas": (0.1,),
        "controls": (0.1,),
        "random_scales": (1.0,),
        "width": 4,
        "tokens": 4,
        "samples": 1,
        "strength": 1.0,
        "random_heads": 2,
    },
    "D11": {
        "spreads": (0.1,),
        "wider": (2.0,),
        "layers": 1,
        "masks": ("causal",),
        "tokens": (2,),
        "heads": (1,),
        "width": 4,
        "tails": (0.0,),
        "preference": 40.0,
    },
    "N1": {
        "layers": 6,
        "width": 4,
        "tokens": 4,
        "samples": 1,
        "init": "orthogonal",
        "shrinking": "bert",
    },
    "W4": {
        "tokens": (2,),
        "searched": (2,),
        "draws": 2,
        "descents": 1,
        "starts": 2,
        "steps": 2,
        "equal": 1e-12,
        "many_starts": 2,
        "many_steps": 2,
    },
    "D7": {
        "tasks": ("sorting",),
        "seeds": 1,
        "layers": 1,
        "mlp_ratio": 0.0,
        "drawn": (1,),
        "repeats": 1,
        "margin": 0.05,
        "rise": 0.03,
        "kept": 0.5,
        "sentences": TEXTS,
        "device": "cpu",
    },
    "widths": {"draws": 1, "layers": 2},
    "W3": {"layers": 4, "tokens": 6, "samples": 1, "draws": 1, "waver": 0.1},
    "W6": {"starts": 2, "layers": 4, "every": 2, "draws": 1},
    "P1": {
        "tokens": (8,),
        "overlaps": (0.5,),
        "ratios": (0.5,),
        "networks": 1,
        "head_width": 4,
        "decades": (2,),
        "drawn": (10, 1),
    },
    "P2": {"kinds": ("post-norm",), "depths": (1, 2), "tokens": 4, "overlap": 0.1, "width": 8},
    "P3": {"layers": 8, "tokens": 4, "overlap": 0.1, "width": 8, "scales": (1.0,), "draws": 1},
    "P4": {"layers": 8, "tokens": 4, "overlap": 0.1, "width": 8, "scales": (1.0,), "draws": 1},
    "P5": {"tokens": (4,), "overlap": 0.1, "scales": (1.0,), "keys": (2,), "norms": (1.0,)},
    "P6": {"tokens": (8, 12, 16), "networks": 1, "draws": 1},
    "P7": {"seeds": 2, "mlp_ratio": 1.0, "draws": 1, "sequences": 1, "enough": 0.7},
    "wu": {
        "depth": 2,
        "width": 8,
        "heads": 2,
        "tokens": 8,
        "samples": 1,
        "window": 2,
        "models": (),
        "texts": TEXTS,
        "length": 8,
    },
}.items():
    entry = experiments.CATALOGUE[one]
    add(f"experiments.Entry.configuration[{one}]", entry.configuration, **options)
    if one[0] != "P" and one not in ("D7", "N1", "W4", "widths", "W3", "W6"):  # these take longer
        add(
            f"experiments.run[{one}]",
            lambda one=one, **more: experiments.run(one, **more),
            **options,
        )
