"""Text and training."""

import torch
from table import add
from things import NET, SENTENCES, TEXTS, X
from torch import nn

import rankscope as rs
from rankscope.models import text, training

add("text.embed", text.embed, texts=list(TEXTS), width=4, length=6, seed=0, dtype=torch.float32)
add(
    "text.InputCheck",
    text.InputCheck,
    origin="text",
    tokens=(("a", "b"),),
    special=((0,),),
    unknown=((1,),),
    lost=(0,),
)
add("text.InputCheck.summary", text.InputCheck("ids", (("a",),)).summary, read_from="ids.txt")
add("text.check_texts", text.check_texts, texts=list(TEXTS), length=6)
add("text.Tokenizer", text.Tokenizer, words=("a", "rose"))
add("text.Tokenizer.of", text.Tokenizer.of, texts=list(TEXTS))
add("text.Tokenizer.__call__", text.Tokenizer(("a", "rose")), text="a rose", length=4)
add("text.Tokenizer.pieces", text.Tokenizer(("a", "rose")).pieces, text="a rose")
MODEL = training.SequenceModel.random(rs.Spec(1, 1, 4), outputs=2, symbols=2000, positions=8)
IDS = torch.tensor([[1, 2, 3], [3, 2, 1]])
EXAMPLES = training.Examples(IDS, IDS % 2)
RECIPE = training.Recipe(2, 1, warmup=1, check_every=1)
TASKED = (X[None], (X[None, ..., 0] > 0).long())
add(
    "training.Recipe",
    training.Recipe,
    steps=2,
    batch=1,
    learning_rate=1e-3,
    warmup=1,
    weight_decay=0.0,
    clip=1.0,
    goal=0.5,
    check_every=1,
    scored=10,
)
add("training.Recipe.rate", RECIPE.rate, step=1)
add("training.Recipe.reached", training.Recipe(2, 1, goal=0.5).reached, score=0.1)
add("training.Hull", training.Hull, points=4)
add("training.Hull.draw", training.Hull(4).draw, count=2, seed=0, purpose="training")
add("training.Sorting", training.Sorting, symbols=3, tokens=4)
add("training.Sorting.draw", training.Sorting(3, 4).draw, count=2, seed=0, purpose="training")
add("training.Memorisation", training.Memorisation, sentences=TEXTS, tokens=6, labels=2)
add("training.Memorisation.draw", training.Memorisation(TEXTS).draw, seed=0)
add("training.Examples", training.Examples, inputs=IDS, targets=IDS, token_mask=IDS > 0, seeds=0)
add("training.Examples.stack", training.Examples.stack, sets=[EXAMPLES, EXAMPLES])
add("training.Examples.to", EXAMPLES.to, device="cpu")
add("training.Examples.pick", training.Examples.stack([EXAMPLES]).pick, rows=torch.tensor([[0, 1]]))
add("training.Classify.loss", training.Classify().loss, outputs=TASKED[0], targets=TASKED[1])
add("training.Classify.score", training.Classify().score, outputs=TASKED[0], targets=TASKED[1])
add("training.Approach.loss", training.Approach().loss, outputs=TASKED[0], targets=TASKED[0])
add("training.Approach.score", training.Approach().score, outputs=TASKED[0], targets=TASKED[0])
add(
    "training.SequenceModel",
    training.SequenceModel,
    encoder=nn.Linear(4, 4),
    positions=X[0],
    network=NET,
    readout=nn.Linear(4, 2),
)
add(
    "training.SequenceModel.random",
    training.SequenceModel.random,
    spec=rs.Spec(1, 1, 4),
    outputs=2,
    symbols=5,
    coordinates=0,
    positions=4,
    seed=0,
)
add("training.SequenceModel.forward", MODEL.forward, inputs=IDS, token_mask=IDS > 0)
add("training.SequenceModel.embed", MODEL.embed, inputs=IDS)
add(
    "training.Trained",
    training.Trained,
    model=MODEL,
    seed=0,
    steps=1,
    score=0.5,
    checks=((1, 0.5),),
)
add(
    "training.LanguageConfig",
    training.LanguageConfig,
    layers=1,
    heads=1,
    width=4,
    length=8,
    masked=0.5,
    copies=1,
    recipe=RECIPE,
)
LANGUAGE = training.LanguageModel(MODEL, 8, 0.5, 0.1, MODEL)
add(
    "training.LanguageModel",
    training.LanguageModel,
    model=MODEL,
    length=8,
    accuracy=0.5,
    chance=0.1,
    untrained=MODEL,
)
add("training.LanguageModel.read", LANGUAGE.read, texts=["a"], length=6)
add(
    "training.small_language_model",
    training.small_language_model,
    seed=0,
    on_step=None,
    config=training.LanguageConfig(1, 1, 4, 64, copies=1, recipe=RECIPE),
)
add(
    "training.train",
    training.train,
    models=[MODEL],
    task=training.Classify(),
    examples=[EXAMPLES],
    recipe=RECIPE,
    seeds=[0],
    device="cpu",
    on_step=None,
)
add("training.read_sentences", training.read_sentences, path=SENTENCES)
