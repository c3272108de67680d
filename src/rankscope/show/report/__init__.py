"""A result as a page, as files, in a terminal and as JSON; all depend only on ``Result``."""

from rankscope.process import optional_packages

with optional_packages():
    from rankscope.show.report._files import names as names
    from rankscope.show.report._files import to_json, write
    from rankscope.show.report._html import notebook, write_html
    from rankscope.show.report._html import write_overview as write_overview
    from rankscope.show.report._page import Chart, Report, Section, Table, page
    from rankscope.show.report._terminal import has_screen as has_screen
    from rankscope.show.report._terminal import show

__all__ = [
    "Chart",
    "Report",
    "Section",
    "Table",
    "notebook",
    "page",
    "show",
    "to_json",
    "write",
    "write_html",
]
