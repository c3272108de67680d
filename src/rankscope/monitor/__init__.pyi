from ._history import RunReader as RunReader
from ._history import read_run as read_run
from ._result import run_result as run_result
from ._result import write_report as write_report
from ._screen import BLOCKS as BLOCKS
from ._screen import PLAIN_BLOCKS as PLAIN_BLOCKS
from ._screen import screen as screen
