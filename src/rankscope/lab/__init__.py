"""The lab: a page on this machine where one plays with a network and sees it collapse, live.

Needs the extra ``rankscope[lab]``: Starlette and uvicorn.
"""

from rankscope.lab._serve import serve
from rankscope.lab._server import make_app
from rankscope.lab._state import State

__all__ = ["State", "make_app", "serve"]
