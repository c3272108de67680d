"""What does rankscope cost on a GPU? ``make bench-gpu``; needs CUDA, and 60 GB for 7B shapes."""

import statistics
import sys
import time
from collections.abc import Callable

import torch
import transformers
from torch import Tensor, nn

import rankscope
from measuring import Ratio
from rankscope import Network, Spec, attach, diagnose, path_lengths, trace
from rankscope.core.deep import deep_trace
from rankscope.core.metrics import GatheredStatistics
from rankscope.core.tracing import Session

Job = Callable[[], object]
ATTENTION = ("attention_entropy", "sink_mass", "largest_weight")
SHAPES = {
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
    },
    "7B": {
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 8192,
    },
}
"""Those of Llama 3.2 and Llama 2."""


def main(wanted: list[str]) -> int:
    """Print each ratio beside its bar; the exit code says whether all were met."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers "
          f"{transformers.__version__}, rankscope {rankscope.__version__}")  # fmt: skip
    parts = {
        "bert": bert,
        "kernel": kernel,
        "llama": llama,
        "long": long,
        "deep": deep,
        "diagnosis": diagnosis,
    }
    ratios: list[Ratio] = []
    with torch.no_grad():
        for name, part in parts.items():
            if not wanted or name in wanted:
                ratios += part()
                torch.cuda.empty_cache()
    for ratio in ratios:
        verdict = "met" if ratio.met else "MISSED"
        print(f"{ratio.what:<64} {ratio.measured:8.3f}  bar {ratio.bar:.2f}  {verdict}", flush=True)
    return int(not all(ratio.met for ratio in ratios))


def bert() -> list[Ratio]:
    """BERT-base, 32 × 128 tokens: the forward pass is bound by Python, so our Python shows."""
    ratios = []
    for dtype, bar in ((torch.bfloat16, 1.5), (torch.float32, 1.10)):
        with torch.device("cuda"):
            model = transformers.BertModel(transformers.BertConfig()).to(dtype).eval()
            ids = torch.randint(0, 30000, (32, 128))
        ratios += _traced(f"BERT-base 32 × 128, {_short(dtype)}", model, ids, bar, rounds=30)
    return ratios


def llama() -> list[Ratio]:
    """The shape of Llama-7B in bfloat16, random weights."""
    model = _llama("7B")
    ratios = []
    for tokens in (2048, 8192):
        ids = torch.randint(0, 32000, (1, tokens), device="cuda")
        ratios += _traced(f"Llama-7B shape, 1 × {tokens}, bf16", model, ids, 1.04, rounds=7)
    ids = torch.randint(0, 32000, (1, 2048), device="cuda")
    return ratios + _in_session("7B shape, 1 × 2048", model, ids, rounds=7, ranks=1.15)


def long() -> list[Ratio]:
    """A shape of a billion parameters on 131,072 tokens."""
    ids = torch.randint(0, 32000, (1, 131_072), device="cuda")
    return _in_session("1B shape, 1 × 131,072", _llama("1B"), ids, rounds=1, ranks=1.04)


def diagnosis() -> list[Ratio]:
    """A model in bfloat16 on 8 × 512 tokens, all chapters; the first includes imports."""
    ratios = []
    for name, bar in (("1B", 15.0), ("1B", 15.0), ("7B", 40.0)):
        model = _llama(name)
        ids = torch.randint(0, 32000, (8, 512), device="cuda")
        torch.cuda.reset_peak_memory_stats()
        spent = _once(lambda model=model, ids=ids: diagnose(model, ids, length=512, chapters="all"))
        peak = torch.cuda.max_memory_allocated() / 1e9
        print(f"  diagnose, {name} shape: {spent:.1f} s, {peak:.1f} GB", flush=True)
        ratios.append(Ratio(f"diagnose, {name} shape, 8 × 512, bf16 / {bar:g} s", spent / bar, 1.0))
        if name == "7B":
            ratios.append(Ratio("peak memory of the same / 80 GB", peak / 80, 1.0))
    return ratios


def _llama(name: str) -> nn.Module:
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.LlamaModel(transformers.LlamaConfig(**SHAPES[name])).eval()
    torch.set_default_dtype(torch.float32)
    return model


def _in_session(
    what: str, model: nn.Module, ids: Tensor, *, rounds: int, ranks: float
) -> list[Ratio]:
    """Metrics beyond the default ones, by a session that has read the model."""
    inputs = {"input_ids": ids, "use_cache": False}
    with attach(model) as session:

        def measure(**options: object) -> Job:
            return lambda: session.trace(inputs, **options)

        jobs = {
            "plain": lambda: model(**inputs),
            "effective rank": measure(metrics="effective_rank"),
            "attention, 64 queries": measure(metrics=ATTENTION, attention="sampled"),
            "attention, all queries": measure(metrics=ATTENTION),
        }
        seconds = _seconds(jobs, rounds)
    ratios = {name: spent / seconds["plain"] for name, spent in seconds.items()}
    plain = f"plain {seconds['plain'] * 1e3:.0f} ms"
    rest = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items() if name != "plain")
    print(f"  {what}, in a session: {plain}, {rest}", flush=True)
    bars = {"effective rank": ranks, "attention, 64 queries": 1.3}
    return [Ratio(f"session / forward, {what}, {name}", ratios[name], bars[name]) for name in bars]


def kernel() -> list[Ratio]:
    """How fast the kernels read 8,192 × 4,096 numbers, beside a plain copy of much more."""
    x = torch.randn(1, 8192, 4096, device="cuda", dtype=torch.bfloat16)
    large = torch.empty(2**30, device="cuda", dtype=torch.bfloat16)
    other = torch.empty_like(large)
    gathered = GatheredStatistics(2000)
    copied = 2 * large.nbytes / _events(lambda: other.copy_(large), large)
    read = x.nbytes / _events(lambda: gathered.add(x, None), large)
    print(f"  copy {copied / 1e12:.2f} TB/s, statistics {read / 1e12:.2f} TB/s of bytes read once")
    return [Ratio("copy bandwidth / the kernels', 8,192 × 4,096 bf16", copied / read, 1 / 0.7)]


def deep() -> list[Ratio]:
    """BERT-large's shape with biases, 16 × 128: exact paths, and scaled arithmetic in float64."""
    network = Network.random(Spec(24, 16, 1024, norm_place="post"), seed=0).cuda()
    for parameter in network.parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    x = torch.randn(16, 128, 1024, device="cuda")
    seconds = _seconds({"plain": lambda: network(x), "paths": lambda: path_lengths(network, x)}, 3)
    ratios = [Ratio("path_lengths / forward, BERT-large 16 × 128",
                   seconds["paths"] / seconds["plain"], 13.5)]  # fmt: skip
    wide, y = network.double(), x.double()
    seconds = _seconds({"plain": lambda: wide(y), "deep": lambda: deep_trace(wide, y)}, 3)
    ratio = seconds["deep"] / seconds["plain"]
    return [*ratios, Ratio("deep_trace / float64 forward, BERT-large 16 × 128", ratio, 6.0)]


def _traced(what: str, model: nn.Module, ids: Tensor, bar: float, *, rounds: int) -> list[Ratio]:
    """A trace with default metrics, and hooks as one would write them, beside the plain pass."""
    inputs = {"input_ids": ids}
    if hasattr(model.config, "use_cache"):
        inputs["use_cache"] = False
    layers = [model.embeddings, *model.encoder.layer] if hasattr(model, "encoder") else model.layers
    session = Session(model)
    jobs = {
        "plain": lambda: model(**inputs),
        "naive hooks": lambda: _with_hooks(model, layers, inputs),
        "trace": lambda: trace(model, inputs),
        "session": lambda: session.trace(inputs),
    }
    first = _once(jobs["trace"])
    seconds = _seconds(jobs, rounds)
    peaks = {name: _peak(job) for name, job in jobs.items()}
    ratios = {name: spent / seconds["plain"] for name, spent in seconds.items()}
    print(
        f"  {what}: plain {seconds['plain'] * 1e3:.2f} ms, naive hooks "
        f"{ratios['naive hooks']:.3f}, trace {ratios['trace']:.3f}, in a session "
        f"{ratios['session']:.3f}, the first trace {first * 1e3:.0f} ms",
        flush=True,
    )
    return [
        Ratio(f"session / forward, {what}", ratios["session"], bar),
        Ratio(
            f"session / hand-written hooks, {what}", ratios["session"] / ratios["naive hooks"], 1.0
        ),
        Ratio(f"peak memory of the same, {what}", peaks["trace"] / peaks["plain"], 1.02),
    ]


def _with_hooks(
    model: nn.Module, layers: list[nn.Module], inputs: dict[str, object]
) -> list[float]:
    """The relative residual of each layer, by a hook and one number at a time."""
    residuals = []

    def hook(_module: nn.Module, _args: object, output: object) -> None:
        x = (output[0] if isinstance(output, tuple) else output).float()
        rest = (x - x.mean(1, keepdim=True)).abs()
        size = (rest.sum(1).amax(-1) * rest.sum(2).amax(-1)).sqrt()
        norms = (x.abs().sum(1).amax(-1) * x.abs().sum(2).amax(-1)).sqrt()
        residuals.append((size / norms).tolist())

    handles = [layer.register_forward_hook(hook) for layer in layers]
    model(**inputs)
    for handle in handles:
        handle.remove()
    return residuals


def _once(job: Job) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    job()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _seconds(jobs: dict[str, Job], rounds: int) -> dict[str, float]:
    """Median seconds of each job, run in turn."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds + 2):
        for name, job in jobs.items():
            spent = _once(job)
            if number >= 2:
                times[name].append(spent)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def _events(job: Job, flush: Tensor) -> float:
    """Median seconds of the device, the caches filled with other numbers before."""
    seconds = []
    for _ in range(12):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(400_000)
        start.record()
        job()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return statistics.median(seconds[2:])


def _peak(job: Job) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    job()
    return torch.cuda.max_memory_allocated()


def _short(dtype: torch.dtype) -> str:
    return "bf16" if dtype == torch.bfloat16 else "float32"


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("no CUDA device is here; these figures are about GPUs.")
    sys.exit(main(sys.argv[1:]))
