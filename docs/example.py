"""Previous-token heads: an observer, a table, a figure and a command.

python docs/example.py --model tiny-gpt2 --corpus bundled --bos --out runs/previous
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import plotly.graph_objects as go
import torch
import typer
from torch import Tensor

import interp
from interp.cli.options import CorpusOption, ModelOption, OutOption
from interp.corpora import Batch, Text, as_batches
from interp.figures.style import figure
from interp.models.sites import Model, Recipe, hook_name
from interp.results import Result, provenance
from interp.run.observers import Observer
from interp.run.passes import Passes, Reading, run


# --8<-- [start:observer]
class PreviousToken(Observer):
    """Attention to the token before, summed over queries, by layer and head."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.W_U.device)
        self.model, self.layers = model, range(model.cfg.n_layers)
        self.add_state("queries", ())
        for layer in self.layers:
            self.add_state(f"{layer}", (model.cfg.n_heads,))

    def hooks(self, batch: Batch) -> Recipe:
        real = batch.mask[:, 1:]
        self.add("queries", real.sum())

        def reading(layer: int) -> tuple[str, Callable[..., Any]]:
            def read(pattern: Tensor, hook: Any) -> None:
                before = pattern.diagonal(-1, dim1=2, dim2=3)  # [batch, head, query − 1]
                self.add(f"{layer}", (before * real[:, None]).sum((0, 2)))

            return hook_name(self.model, "pattern", layer), read

        return [reading(layer) for layer in self.layers]


# --8<-- [end:observer]


# --8<-- [start:result]
@dataclass(frozen=True, eq=False)
class PreviousTokenHeads(Result):
    """`heads` (layer, head, attention, n_queries): mean attention to the token before."""

    analysis: ClassVar[str] = "previous_token"

    heads: pd.DataFrame


def previous_token_heads(model: Model, text: Text) -> Passes[PreviousTokenHeads]:
    """How much each head attends to the token before, on average over queries."""
    batches, observer = as_batches(model, text), PreviousToken(model)
    yield [Reading("previous token", batches, [observer])]

    n = int(observer.state["queries"])
    mean = torch.stack([observer.state[f"{layer}"] for layer in observer.layers]).cpu() / n
    mean_by_head = pd.DataFrame(mean.numpy()).stack().rename_axis(["layer", "head"])
    heads = mean_by_head.reset_index(name="attention").assign(n_queries=n)
    return PreviousTokenHeads(provenance(model, batches.about, n_queries=n), heads)


# --8<-- [end:result]


# --8<-- [start:figure]
def heads_figure(result: PreviousTokenHeads) -> go.Figure:
    """A square for each head, darker the less it attends to the token before."""
    square = result.heads.pivot(index="layer", columns="head", values="attention")
    out = figure("Attention to the token before", "head", "layer")
    out.add_heatmap(z=square, x=square.columns, y=square.index, colorscale="Cividis")
    return out.update_xaxes(dtick=1).update_yaxes(dtick=1)


# --8<-- [end:figure]


# --8<-- [start:command]
def main(model: ModelOption, corpus: CorpusOption, out: OutOption, bos: bool = False) -> None:
    """Which heads attend to the token before? Writes OUT/previous_token."""
    loaded = interp.load(model)
    text = interp.corpora.batches(loaded, corpus, bos=bos)
    result = run(loaded, previous_token_heads(loaded, text))
    folder = result.save(out)
    heads_figure(result).write_html(folder / "heads.html", include_plotlyjs=True)
    typer.echo(result.heads.nlargest(3, "attention").to_string(index=False))


if __name__ == "__main__":
    typer.run(main)
# --8<-- [end:command]
