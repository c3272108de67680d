"""The version, in a file that imports nothing, so that ``--version`` answers at once."""

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """What a figure's provenance says about the software it was made with."""
    import platform
    from importlib.metadata import version

    return {
        "rankscope": __version__,
        "torch": version("torch"),
        "python": platform.python_version(),
    }
