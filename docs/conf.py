"""Settings of the site: ``make docs`` builds it, with warnings as errors."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent / "tools")]

from rankscope.version import __version__  # noqa: E402

project = "rankscope"
author = "The rankscope developers"
project_copyright = "The rankscope developers; Apache-2.0"
release = version = __version__
language = "en"

extensions = ["myst_parser", "rankscope_site"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_ext", "generated/cache"]
nitpicky = True
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence"]
myst_heading_anchors = 4  # as on GitHub, where the same pages are read

html_theme = "furo"
html_title = "rankscope"
html_static_path = ["_static"]
html_css_files = ["site.css", "figures.css"]
html_favicon = "_static/icon.svg"
html_copy_source = False
html_use_index = False
html_show_sourcelink = False
html_theme_options = {
    "sidebar_hide_name": False,
    "light_css_variables": {
        "color-brand-primary": "#2b57b0",
        "color-brand-content": "#2b57b0",
        "color-brand-visited": "#6a3fb0",
        "code-paper": "#f4f6f9",
    },
    "dark_css_variables": {
        "color-brand-primary": "#8fb4ff",
        "color-brand-content": "#8fb4ff",
        "color-brand-visited": "#c3a6f5",
        "code-paper": "#202429",
    },
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
