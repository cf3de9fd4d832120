"""Units: what their observers cost, compared with the forward passes that they observe.

`python benchmarks/units.py [--quick]`. A GPT-2 of 124M parameters with random weights reads bundled minimal pairs,
tokenised by the bundled tokenizer. Moments, flipped labels and histograms of all 56,064 units are collected by task and
fold.
"""

from collections.abc import Iterator

import numpy as np
import torch
import transformers
from models import GPT2, random_model
from timing import Row, alternate, command, row

from interp.analyses.units.reading import FLIPS, sample
from interp.analyses.units.sums import Scale, UnitSums, folds_of, pair_batches, places, signs_of
from interp.corpora import pairs
from interp.corpora.positions import state_rows
from interp.models.running import running
from interp.passes.reading import forward, observe

FOLDS = 2
WHAT = "sums of units over minimal pairs"


def rows(quick: bool) -> Iterator[Row]:
    n, layers, repeats = (12, 2, 1) if quick else (400, 12, 5)
    table = pairs.generate(tasks=["reflexive_number", "determiner_noun"], n_per_task=n)
    tasks = [np.flatnonzero(table["UID"] == task) for task in table["UID"].unique()]
    with random_model(transformers.GPT2Config(n_layer=layers), "tiny-gpt2") as (model, _):
        sentences = table[["sentence_good", "sentence_bad"]].to_numpy().ravel().tolist()
        where = places(model)
        ids = state_rows(model, sentences, "eos", bos=False)
        few = pair_batches(model, ids, [sample(task) for task in tasks], "eos", {})
        all_batches = pair_batches(model, ids, tasks, "eos", {})

        def ours() -> None:
            scales = [Scale(model, where, sample(task)) for task in tasks]
            observe(model, few, *scales, progress=False)
            folds = [folds_of(len(task), FOLDS) for task in tasks]
            signs = [signs_of(len(task), FLIPS) for task in tasks]
            parts = zip(tasks, folds, signs, scales, strict=True)
            sums = [UnitSums(model, where, task, fold, flips, scale=scale) for task, fold, flips, scale in parts]
            observe(model, all_batches, *sums, progress=False)

        @torch.no_grad()
        def plain() -> None:
            for batch in all_batches:
                with running(model):
                    forward(model, batch, layers)

        seconds = alternate({"interp": ours, "forward": plain}, repeats=repeats)
        units = sum(place.width for place in where)
        yield row(
            WHAT, f"{GPT2}, {len(tasks)} tasks × {n} pairs, {units:,} units", seconds["interp"],
            floor=("the same model, no head", seconds["forward"]),
        )  # fmt: skip


if __name__ == "__main__":
    command(rows, __doc__)
