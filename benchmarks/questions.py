"""What a question costs with all of its controls, on SmolLM2-135M-Instruct: CPU time of one thread.

`python benchmarks/questions.py [--quick]`. `tools/published.py` makes the model; without the package index, there are
no rows. The text is 40 rows of 256 tokens of the bundled corpus. A note says how the time of a question divides between
forward passes, the observers that are filled in them, by class, and what comes after.
"""

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import Row, alternate, command, row
from torch import Tensor

import interp
from interp import corpora
from interp.corpora.tokens import encode
from interp.passes import reading
from interp.passes.observers import Observer
from interp.passes.reading import forward

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from published import SMOLLM2, Unreachable, directories

FORWARD = "a forward pass with its logits"


def rows(quick: bool) -> Iterator[Row]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        model = interp.load(directories()[SMOLLM2])
    except Unreachable as error:
        print(f"published models were left out: {error}", file=sys.stderr)
        return
    n, context = (4, 64) if quick else (40, 256)
    ids = [token for row in encode(model.tokenizer, list(corpora.load("bundled"))) for token in row]
    tokens = torch.tensor(ids[: n * context]).view(n, context)
    batches = corpora.batches(model, tokens)
    questions = {
        "attention": partial(interp.attention.study, model, tokens, progress=False),
        "attention, nothing removed": partial(interp.attention.study, model, tokens, ablation=False, progress=False),
        "frequency": partial(interp.frequency.study, model, tokens, progress=False),
        "controls": partial(interp.controls.study, model, tokens, progress=False),
    }
    for name, ask in questions.items():
        seconds = alternate(
            {name: ask, FORWARD: partial(read, model, batches)}, repeats=1 if quick else 5, clock=time.process_time
        )
        floor = (FORWARD, seconds[FORWARD])
        yield row(f"interp {name}", f"{n} × {context} tokens", seconds[name], floor=floor, note=divided(ask))


@torch.no_grad()
def read(model: Any, batches: corpora.Batches) -> None:
    for batch in batches:
        forward(model, batch)


def divided(ask: Callable[[], object]) -> str:
    """How the time of a question divides."""
    seconds: Counter[str] = Counter()
    kinds = [Observer, *descendants(Observer)]
    plain = {kind: kind.hooks for kind in kinds if "hooks" in vars(kind)}
    run = reading._run

    def counted(*arguments: Any) -> None:
        began = time.process_time()
        inside = sum(seconds.values())
        run(*arguments)
        seconds["forward passes"] += time.process_time() - began - (sum(seconds.values()) - inside)

    try:
        for kind, hooks in plain.items():
            kind.hooks = timed(hooks, seconds)  # type: ignore[method-assign]
        reading._run = counted
        began = time.process_time()
        ask()
        total = time.process_time() - began
    finally:
        reading._run = run
        for kind, hooks in plain.items():
            kind.hooks = hooks  # type: ignore[method-assign]
    seconds["the rest"] = total - sum(seconds.values())
    return ", ".join(f"{name} {spent / total:.0%}" for name, spent in seconds.most_common() if spent > total / 100)


def descendants(kind: type) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield child
        yield from descendants(child)


def timed(hooks: Callable[..., Any], seconds: Counter[str]) -> Callable[..., Any]:
    """The hooks of an observer, with the time in each of them added to that of its class."""

    def of_batch(observer: Observer, batch: corpora.batching.Batch) -> list[tuple[Any, Callable[..., Any]]]:
        return [
            (name, partial(measured, function, type(observer).__name__)) for name, function in hooks(observer, batch)
        ]

    def measured(function: Callable[..., Any], kind: str, activation: Tensor, hook: Any) -> Any:
        began = time.process_time()
        inside = sum(seconds.values())
        value = function(activation, hook)
        seconds[kind] += time.process_time() - began - (sum(seconds.values()) - inside)
        return value

    return of_batch


if __name__ == "__main__":
    command(rows, __doc__)
