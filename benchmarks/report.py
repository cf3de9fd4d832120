"""Where `interp report` spends its time: forward passes, the hooks in them, fits of probes, and the rest.

`python benchmarks/report.py [--quick]`. Imports are not counted, and hooks are counted apart from the forward passes.
"""

import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from timing import Row, command, note_only
from transformer_lens import HookedEncoder, HookedTransformer
from transformer_lens.hook_points import HookPoint

from interp.analyses.probing import shared
from interp.cli import main
from interp.support.paths import bundled_models


class Clock:
    """The seconds spent in a function; calls nested in its own calls are not counted twice."""

    def __init__(self) -> None:
        self.seconds, self.depth = 0.0, 0

    def timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            self.depth += 1
            start = time.perf_counter()
            try:
                return work(*arguments, **options)
            finally:
                self.depth -= 1
                if not self.depth:
                    self.seconds += time.perf_counter() - start

        return run


def rows(quick: bool) -> Iterator[Row]:
    clocks = {name: Clock() for name in ("forward passes", "hooks in them", "fits of probes")}
    forward, hooks, fits = clocks.values()
    for kind in (HookedTransformer, HookedEncoder):
        kind.forward = forward.timed(kind.forward)
    HookedEncoder.encoder_output = forward.timed(HookedEncoder.encoder_output)
    HookPoint.__call__ = hooks.timed(HookPoint.__call__)
    shared.fit_sparse, shared.fit_dense = fits.timed(shared.fit_sparse), fits.timed(shared.fit_dense)
    few = {"probing": {"states": [3], "steps": 50, "seeds": [0]}, "generation": {"n": 5, "decoders": ["greedy"]}}
    small = ["--limit", "20", "--pair-limit", "10", "--settings", json.dumps(few)] if quick else []
    for model in bundled_models():
        for clock in clocks.values():
            clock.seconds = 0.0
        with tempfile.TemporaryDirectory() as out, contextlib.redirect_stderr(io.StringIO()):
            start = time.perf_counter()
            with contextlib.redirect_stdout(io.StringIO()):
                code = main(["report", "--model", model, "--out", out, *small])
            total = time.perf_counter() - start
        if code:
            sys.exit(f"interp report ended with exit code {code}")
        shares = {name: clock.seconds / total for name, clock in clocks.items()}
        shares["forward passes"] -= shares["hooks in them"]
        note = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        row = note_only("interp report", f"{model}, bundled text and pairs", note)
        row["interp, s"] = f"{total:.0f}"
        yield row


if __name__ == "__main__":
    command(rows, __doc__)
