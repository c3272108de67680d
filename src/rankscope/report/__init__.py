"""Charts and words → one HTML file; the same findings in a terminal."""

from rankscope.report.claim import claim_chart, claim_page
from rankscope.report.diagnosis import diagnosis_page
from rankscope.report.page import Report, Section
from rankscope.report.paths import exactness, paths_page
from rankscope.report.study import study_charts, study_page
from rankscope.report.writing import write_html

__all__ = [
    "Report",
    "Section",
    "claim_chart",
    "claim_page",
    "diagnosis_page",
    "exactness",
    "paths_page",
    "study_charts",
    "study_page",
    "write_html",
]
