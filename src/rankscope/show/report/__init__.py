"""A result as a page, as files, in a terminal and as JSON; each knows ``Result`` and no more."""

from rankscope.show.report._compose import page
from rankscope.show.report._document import Chart, Markup, Report, Section, Table
from rankscope.show.report._files import names as names
from rankscope.show.report._files import write
from rankscope.show.report._html import write_html
from rankscope.show.report._json import to_json
from rankscope.show.report._notebook import notebook
from rankscope.show.report._overview import write_overview
from rankscope.show.report._terminal import show

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
