"""Every row of the table, from all files of ``rows``."""

import runpy
from pathlib import Path

from table import ROWS as ROWS

for file in sorted((Path(__file__).parent / "rows").glob("*_rows.py")):
    runpy.run_path(str(file))
