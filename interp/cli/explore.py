"""`interp explore`: a page on this machine on which one types sentences and looks into a model."""

import importlib.util
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.analyses.options import CORPUS, ModelOptions
from interp.cli import flags
from interp.cli.screen import echo
from interp.support.paths import corpus_file, model_directory

__all__ = ["explore"]

_PROBES = "Directory of a run of interp probing on this model, whose probes are then shown at every token."
_PORT = "Port of this machine; 0 for any that is free."


@flags.with_flags(*flags.parameters(ModelOptions))
def explore(
    model: flags.ModelArgument,
    *,
    corpus: Annotated[str, typer.Option(help=CORPUS, autocompletion=flags.complete_corpus)] = "bundled",
    probes: Annotated[Path | None, typer.Option(help=_PROBES, metavar="DIR", parser=flags.path)] = None,
    port: Annotated[int, typer.Option(help=_PORT, min=0, max=65535)] = 8050,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the page in a browser.")] = False,
    **values: Any,
) -> None:
    """Explore a model on a page of this machine.

    Type a sentence and see which residual dimensions make an attention score, what b_LN or E[h] does to frequent
    words, how a token is made more probable, and which of two sentences is more probable. E[h] and the fit of token
    probability come from the first texts of --corpus, which are read once and kept in the user's cache. Ctrl-C ends it.
    """
    if importlib.util.find_spec("dash") is None:
        raise ValueError("interp explore needs dash, which is not installed; pip install 'interp[explore]'")
    model_directory(model)
    corpus_file(corpus)
    options = flags.read(ModelOptions, values)

    from interp.pages.explorer.server import listening, served
    from interp.pages.explorer.subject import subject

    with listening(port) as listener:
        explored = subject(model, options, corpus=corpus, probes=probes)
        server, address = served(explored, listener)
        echo(f"{address}\nThis address has a token in it, and only this machine can open it. Ctrl-C ends the explorer.")
        if not no_browser:
            webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            echo("")
        finally:
            server.server_close()
