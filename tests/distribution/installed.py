"""Run inside an environment that has the wheel and some extras: does each do what it promises?

``python installed.py EXTRA NAMES`` prints a JSON object: the optional packages that are importable,
and the public names that are not available with their errors.
"""

import io
import json
import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path

import rankscope
from rankscope.errors import MissingPackageError
from rankscope.process import REQUIREMENTS, is_installed, require


def unavailable(names: dict[str, str]) -> dict[str, str]:
    """Public names that raise, with the sentence; a package that is not exported whole is a bug."""
    refusals = {}
    for package, listed in names.items():
        try:
            module = import_module(package)
        except MissingPackageError as error:
            refusals[package] = str(error)
            continue
        if hasattr(module, "__all__"):
            assert sorted(module.__all__) == listed.split(), package
        for name in listed.split():
            try:
                assert getattr(module, name) is not None
            except MissingPackageError as error:
                refusals[f"{package}.{name}"] = str(error)
    return refusals


def network() -> "rankscope.Network":
    return rankscope.Network.random(rankscope.Spec(layers=3, heads=2, width=16), seed=0)


def bare() -> None:
    """Everything but real models, pictures, the command line and graphs of irregular masks."""
    import torch

    net, x = network(), torch.randn(2, 8, 16)
    assert rankscope.residual(x).shape == (2,)
    assert rankscope.masks.as_mask("causal").matrix(3).tolist()[0] == [True, False, False]
    assert rankscope.trace(net, x).table.height
    encoder = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False
    )
    assert rankscope.trace(encoder.eval(), x).table["layer"].unique().to_list() == [0, 1, 2]
    assert rankscope.path_lengths(net, x).table.height
    assert rankscope.deep_trace(net, x).table.height
    assert rankscope.bounds(net, x).table.height
    assert rankscope.predict(net.spec, x[0], draws=2).table.height
    assert rankscope.theory.graph_facts("window:2", 16).collapses
    with rankscope.Monitor(net, x, every=1, folder="run") as monitor:
        monitor.step(loss=1.0)
    steps = [record.step for record in rankscope.monitor.read_run("run").records]
    assert steps == [0, 1]
    for result in (rankscope.diagnose(net, x), rankscope.diagnose(encoder, x)):
        assert result.sentences
        assert "<table" in result._repr_html_()
        assert type(result).load(result.save("result.parquet")).sentences == result.sentences


def hf() -> None:
    from rankscope.models.families import BUILTIN

    config = BUILTIN["bert-base"]()
    config.update({"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2})
    config.update({"intermediate_size": 48, "vocab_size": 99})
    require("transformers").BertModel(config).save_pretrained("tiny")
    loaded = rankscope.load("tiny")
    assert loaded.network.spec.layers == 2
    assert rankscope.trace(loaded, [[5, 6, 7, 8]]).table.height


def plot() -> None:
    import torch

    result = rankscope.diagnose(network(), torch.randn(2, 8, 16))
    rankscope.figures.save(result.plot(), "chart.svg")
    assert Path("chart.svg").read_text("utf-8").startswith("<svg")
    with redirect_stdout(io.StringIO()) as shown:
        rankscope.report.show(result)
    assert result.sentences[0][:20] in shown.getvalue()
    rankscope.report.write(result, Path("page"))
    assert next(Path("page").glob("*.html")).stat().st_size > 100_000


def theory() -> None:
    assert rankscope.theory.graph_facts("strided:3", 9).centers


def cli() -> None:
    from typer.testing import CliRunner

    from rankscope.cli import app

    printed = CliRunner().invoke(app, ["list", "versions"]).output
    assert rankscope.__version__ in printed


def lab() -> None:
    from rankscope.show.lab import serve

    assert callable(serve)


def ray() -> None:
    assert require("ray").__version__
    assert rankscope.run.RayEngine()


def lightning() -> None:
    import torch

    monitor = rankscope.Monitor(network(), torch.randn(2, 8, 16), folder="run")
    assert isinstance(monitor.lightning(), require("lightning.pytorch").Callback)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    names = json.loads(sys.argv[2])
    importable = [package for package in REQUIREMENTS if is_installed(package)]
    print(json.dumps({"importable": importable, "unavailable": unavailable(names)}))
