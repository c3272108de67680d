"""The lab: a page on this machine where one plays with a network and sees it collapse, live.

Needs the extra ``rankscope[lab]``: Starlette and uvicorn.
"""

from rankscope.lab._serve import serve

__all__ = ["serve"]
