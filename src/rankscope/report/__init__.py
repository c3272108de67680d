"""A result as a page, as files, in a terminal and as JSON; each knows ``Result`` and no more."""

from rankscope.report._compose import page
from rankscope.report._document import Chart, Markup, Report, Section, Table
from rankscope.report._files import names as names
from rankscope.report._files import write
from rankscope.report._html import write_html
from rankscope.report._json import to_json
from rankscope.report._notebook import notebook
from rankscope.report._overview import write_overview
from rankscope.report._terminal import show

__all__ = [
    "Chart",
    "Markup",
    "Report",
    "Section",
    "Table",
    "notebook",
    "page",
    "show",
    "to_json",
    "write",
    "write_html",
    "write_overview",
]
