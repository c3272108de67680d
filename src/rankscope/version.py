"""The version, and where its documentation is.

Imports nothing, so that the build and `--version` read it at once.
"""

from functools import cache

__version__ = "0.1.0"


def documentation(page: str, name: str) -> str:
    """Where the documentation describes something: its page on the site, or a section in docs/.

    ``page`` is "alarms", "rules" or "errors". The address of the site is the ``Documentation`` URL
    of the installed package; without one, the answer is a path in the repository.

    >>> documentation("alarms", "rank-collapse").endswith(("rank-collapse", "rank-collapse.html"))
    True
    """
    section = name.lower().replace(" ", "-")
    site = _site()
    return f"{site}/generated/{page}/{section}.html" if site else f"docs/{page}.md#{section}"


@cache
def _site() -> str:
    from importlib import metadata  # takes longer than the rest of the base

    try:
        listed = metadata.metadata("rankscope").get_all("Project-URL") or ()
    except metadata.PackageNotFoundError:  # run from its source
        return ""
    addresses = dict(line.split(", ", 1) for line in listed if ", " in line)
    return str(addresses.get("Documentation", "")).rstrip("/")
