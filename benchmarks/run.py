"""Run every benchmark and hold the ratios against their bars; ``make bench``."""

import sys

import tracing


def main() -> int:
    """Print each ratio beside its bar; the exit code says whether all were met."""
    ratios = tracing.main()
    print()
    for what, measured, bar in ratios:
        verdict = "met" if measured <= bar else "MISSED"
        print(f"{what:<50} {measured:6.3f}  bar {bar:.2f}  {verdict}")
    return int(any(measured > bar for _, measured, bar in ratios))


if __name__ == "__main__":
    sys.exit(main())
