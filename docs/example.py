"""Previous-token heads: an observer, a result, a figure and a section, and the declaration of it all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor

from interp.analyses.declare import Analysis, option, option_class
from interp.analyses.options import TextOptions
from interp.corpora.batching import Batch, Text, as_batches
from interp.figures.figure import Figure
from interp.figures.section import Section
from interp.figures.style import figure
from interp.models.sites import Model, Recipe, hook_name
from interp.passes.execution import Passes, Reading, asks
from interp.passes.observers import Observer
from interp.results.result import Result, provenance


# --8<-- [start:observer]
class PreviousToken(Observer):
    """Attention to the token `distance` before, summed over queries, by layer and head."""

    def __init__(self, model: Model, distance: int) -> None:
        super().__init__(model.W_U.device, distance=distance)
        self.model, self.distance, self.layers = model, distance, range(model.cfg.n_layers)
        self.add_state("queries", ())
        for layer in self.layers:
            self.add_state(f"{layer}", (model.cfg.n_heads,))

    def hooks(self, batch: Batch) -> Recipe:
        real = batch.mask[:, self.distance :]
        self.add("queries", real.sum())

        def reading(layer: int) -> tuple[str, Callable[..., Any]]:
            def read(pattern: Tensor, hook: Any) -> None:
                before = pattern.diagonal(-self.distance, dim1=2, dim2=3)  # [batch, head, query − distance]
                self.add(f"{layer}", (before * real[:, None]).sum((0, 2)))

            return hook_name(self.model, "pattern", layer), read

        return [reading(layer) for layer in self.layers]


# --8<-- [end:observer]


# --8<-- [start:result]
@dataclass(frozen=True, eq=False)
class PreviousTokenHeads(Result):
    """`heads` (layer, head, attention, n_queries): mean attention to the token before."""

    analysis: ClassVar[str] = "previous_token"
    page: ClassVar[str | None] = "example"

    heads: pd.DataFrame


@option_class
class PreviousTokenOptions(TextOptions):
    distance: int = option(default=1, help="Which token before: 1 is the last one.", least=1)


@asks(PreviousTokenOptions)
def previous_token_heads(model: Model, text: Text, options: PreviousTokenOptions) -> Passes[PreviousTokenHeads]:
    """How much each head attends to the token before, on average over queries."""
    batches, observer = as_batches(model, text, **options.text), PreviousToken(model, options.distance)
    yield [Reading("previous token", batches, [observer])]

    n = int(observer.state["queries"])
    mean = torch.stack([observer.state[f"{layer}"] for layer in observer.layers]).cpu() / n
    mean_by_head = pd.DataFrame(mean.numpy()).stack().rename_axis(["layer", "head"])
    heads = mean_by_head.reset_index(name="attention").assign(n_queries=n)
    return PreviousTokenHeads(provenance(model, batches.about, distance=options.distance, n_queries=n), heads)


# --8<-- [end:result]


# --8<-- [start:figure]
def heads_figure(result: PreviousTokenHeads) -> Figure:
    """A square for each head, darker the less it attends to the token before."""
    square = result.heads.pivot(index="layer", columns="head", values="attention")
    out = figure("Attention to the token before", "head", "layer")
    out.add_heatmap(z=square, x=square.columns, y=square.index, colorscale="Cividis")
    return out.update_xaxes(dtick=1).update_yaxes(dtick=1)


def section(result: PreviousTokenHeads) -> Section:
    most = result.heads.loc[result.heads["attention"].idxmax()]
    note = f"L{most['layer']:.0f}H{most['head']:.0f} attends most to the token before: {most['attention']:.2f}."
    return Section(
        main="heads",
        findings=result.findings,
        notes=(note,),
        definitions={"Previous-token head": "One half of an induction circuit (Elhage et al. 2021)."},
        figures={"heads": heads_figure(result)},
        tables={"Mean attention to the token before": result.heads},
        provenance=result.provenance,
    )


# --8<-- [end:figure]


# --8<-- [start:declaration]
ANALYSIS = Analysis(
    name="previous_token",
    title="Previous-token heads",
    question="Which heads attend to the token before?",
    help="Mean attention to the token before, by layer and head.",
    reads="text",
    options=PreviousTokenOptions,
    answer="example:previous_token_heads",
    result="example:PreviousTokenHeads",
)
# --8<-- [end:declaration]
