"""What does tracing cost on a GPU? ``make bench-gpu``; it needs CUDA, and 40 GB for a 7B shape."""

import statistics
import sys
import time
from collections.abc import Callable

import torch
import transformers
from torch import Tensor, nn

import rankscope
from measuring import Ratio
from rankscope import Network, Spec, path_lengths, trace
from rankscope.core.deep import deep_trace
from rankscope.core.metrics import GatheredStatistics

Job = Callable[[], object]


def main(wanted: list[str]) -> int:
    """Print each ratio beside its bar; the exit code says whether all were met."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers "
          f"{transformers.__version__}, rankscope {rankscope.__version__}")  # fmt: skip
    parts = {"bert": bert, "kernel": kernel, "llama": llama, "deep": deep}
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
    for dtype, bar in ((torch.bfloat16, 1.10), (torch.float32, 1.10)):
        with torch.device("cuda"):
            model = transformers.BertModel(transformers.BertConfig()).to(dtype).eval()
            ids = torch.randint(0, 30000, (32, 128))
        ratios += _traced(f"BERT-base 32 × 128, {_short(dtype)}", model, ids, bar, rounds=30)
    return ratios


def llama() -> list[Ratio]:
    """The shape of Llama-7B in bfloat16, random weights."""
    config = transformers.LlamaConfig(
        hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.LlamaModel(config).eval()
    torch.set_default_dtype(torch.float32)
    ratios = []
    for tokens in (2048, 8192):
        ids = torch.randint(0, 32000, (1, tokens), device="cuda")
        ratios += _traced(f"Llama-7B shape, 1 × {tokens}, bf16", model, ids, 1.02, rounds=7)
    return [*ratios, _ranks(model)]


def _ranks(model: nn.Module) -> Ratio:
    """The effective rank of every layer of 2,048 tokens."""
    ids = torch.randint(0, 32000, (1, 2048), device="cuda")
    inputs = {"input_ids": ids, "use_cache": False}
    jobs = {
        "plain": lambda: model(**inputs),
        "ranks": lambda: trace(model, inputs, metrics="effective_rank"),
    }
    seconds = _seconds(jobs, 3)
    ratio = seconds["ranks"] / seconds["plain"]
    return Ratio("trace / forward, effective rank of every layer", ratio, 1.15)


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
    return [*ratios, Ratio("deep_trace / float64 forward, BERT-large 16 × 128", ratio, 4.0)]


def _traced(what: str, model: nn.Module, ids: Tensor, bar: float, *, rounds: int) -> list[Ratio]:
    """A trace with default metrics, and hooks as one would write them, beside the plain pass."""
    inputs = {"input_ids": ids}
    if hasattr(model.config, "use_cache"):
        inputs["use_cache"] = False
    layers = [model.embeddings, *model.encoder.layer] if hasattr(model, "encoder") else model.layers
    jobs = {
        "plain": lambda: model(**inputs),
        "naive hooks": lambda: _with_hooks(model, layers, inputs),
        "trace": lambda: trace(model, inputs),
    }
    first = _once(jobs["trace"])
    seconds = _seconds(jobs, rounds)
    peaks = {name: _peak(job) for name, job in jobs.items()}
    print(
        f"  {what}: plain {seconds['plain'] * 1e3:.2f} ms, naive hooks "
        f"{seconds['naive hooks'] / seconds['plain']:.3f}, trace "
        f"{seconds['trace'] / seconds['plain']:.3f}, the first trace {first * 1e3:.0f} ms",
        flush=True,
    )
    return [
        Ratio(f"trace / forward, {what}", seconds["trace"] / seconds["plain"], bar),
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
