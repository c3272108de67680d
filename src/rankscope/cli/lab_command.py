"""``rankscope lab``: a page on this machine to play with networks."""

from typing import Annotated

import typer

from rankscope.cli.application import app
from rankscope.errors import InputError


@app.command()
def lab(
    *,
    host: Annotated[
        str,
        typer.Option(help="The address to bind to; others than 127.0.0.1 are open to others."),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(help="The port; 0 for any that is free.", show_default="8417, or a free one"),
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address; open no browser.")
    ] = False,
) -> None:
    """Play with a network and see it collapse, live, on a page of this machine.

    Nothing is loaded from elsewhere and nothing is sent anywhere. Ctrl-C ends it.
    """
    try:
        from rankscope.show.lab import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise InputError(
            f"the lab needs {error.name}, which is not installed; run "
            "pip install 'rankscope[lab]' and try again."
        ) from None
    serve(
        host=host,
        port=port,
        browser=not no_browser,
        on_ready=lambda address: typer.echo(f"The lab is at {address} (Ctrl-C ends it)."),
    )
