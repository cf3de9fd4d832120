"""What observers add to a forward pass, each in a pass of its own and all of them in one pass.

`python benchmarks/together.py [--quick]`. A GPT-2 of 124M parameters with random weights reads random tokens.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import transformers
from models import CLASSES, GPT2, random_model, tokens
from timing import Measured, Row, alternate, command, row

from interp import corpora
from interp.analyses.attention.patterns import AttentionByClass
from interp.instruments.logits import SiteMean
from interp.instruments.predictions import MeanPredictions, Variant
from interp.instruments.profile import DimensionCorrelations, DimensionProfile
from interp.instruments.scores import ScoreContributions
from interp.passes.observers import Observer
from interp.passes.reading import observe

PROFILE = "profile of every dimension of every hidden state"


def rows(quick: bool) -> Iterator[Row]:
    config = transformers.GPT2Config(n_layer=2, n_embd=96) if quick else transformers.GPT2Config()
    with random_model(config) as (model, _):
        batches = corpora.batches(model, tokens(1 if quick else 8, 128, 50_257), batch_size=8)
        classes = corpora.token_classes(model, CLASSES)
        log_u = torch.rand(50_257, generator=torch.Generator().manual_seed(0)).log()
        makers: dict[str, Callable[[], Observer]] = {
            PROFILE: lambda: DimensionProfile(model, classes),
            "correlation of every dimension with frequency and attention": lambda: DimensionCorrelations(model, log_u),
            "mean of every neuron of the last layer": lambda: SiteMean(
                model, "mlp_post", model.cfg.d_mlp, layer=model.cfg.n_layers - 1
            ),
            "attention by class": lambda: AttentionByClass(model, classes),
            "attention contributions": lambda: ScoreContributions(model, classes),
            "mean prediction": lambda: MeanPredictions(model, [Variant()]),
        }

        def observed(*chosen: Callable[[], Observer]) -> None:
            observe(model, batches, *(make() for make in chosen), progress=False)

        @torch.no_grad()
        def forward(stop: int | None) -> None:
            for batch in batches:
                model(batch.tokens, stop_at_layer=stop)

        contestants = {name: partial(observed, make) for name, make in makers.items()}
        contestants["together"] = partial(observed, *makers.values())
        floors = {"HookedTransformer, no head": model.cfg.n_layers, "HookedTransformer, with logits": None}
        for name, stop in floors.items():
            contestants[name] = partial(forward, stop)
        seconds = alternate(contestants, repeats=1 if quick else 5)

    without, with_logits = ((name, seconds[name]) for name in floors)
    workload = f"{GPT2}, {sum(batch.n_read for batch in batches)} tokens, the pass alone"
    for name in makers:
        yield row(name, workload, seconds[name], floor=with_logits if name == "mean prediction" else without)
    in_turn = Measured([sum(durations) for durations in zip(*(seconds[name].seconds for name in makers), strict=True)])
    other = ("one pass each", in_turn)
    yield row("all six of these in one pass", workload, seconds["together"], other=other, floor=with_logits)


if __name__ == "__main__":
    command(rows, __doc__)
