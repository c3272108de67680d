"""Run every benchmark and hold the ratios against their bars; ``make bench``."""

import sys

import answers
import bounds
import centers
import depths
import families
import graphs
import monitor
import paths
import prediction
import startup
import sweeps
import tracing
import training


def main() -> int:
    """Print each ratio beside its bar; the exit code says whether all were met."""
    ratios = []
    every = (
        tracing,
        families,
        paths,
        centers,
        depths,
        bounds,
        prediction,
        graphs,
        training,
        monitor,
    )
    for benchmark in (*every, answers, startup, sweeps):
        ratios += benchmark.main()
        print()
    for ratio in ratios:
        verdict = "met" if ratio.met else "MISSED"
        print(f"{ratio.what:<50} {ratio.measured:6.3f}  bar {ratio.bar:.2f}  {verdict}")
    return int(not all(ratio.met for ratio in ratios))


if __name__ == "__main__":
    sys.exit(main())
