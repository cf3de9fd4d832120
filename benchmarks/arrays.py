"""Attention scores of a 70B-parameter model: their size on disk, and the time to open them and take a slice.

`python benchmarks/arrays.py [--quick]`. Writes 1.7 GB to the folder for temporary files, and removes them afterwards.
They are compared with the tidy table of two of the 80 layers, saved as Parquet. Files are read from the operating
system's cache.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from timing import Row, agrees, alternate, command, note_only, row

from interp.instruments.scores import KEY, SCORES
from interp.results.dense import Dense

WHAT = "saved attention scores"
CLASSES = ["cls", "sep", "comma", "period", "other"]
LAYER, HEAD = 1, 2


def scores(n_layers: int, n_heads: int, d_model: int) -> Dense:
    rng = np.random.default_rng(0)
    shape = n_layers, n_heads, len(CLASSES), d_model
    mean, centred = np.empty(shape, np.float32), np.empty(shape, np.float32)
    for layer in range(n_layers):
        mean[layer] = rng.standard_normal(shape[1:], dtype=np.float32)
        centred[layer] = mean[layer] - mean[layer].mean(1, keepdims=True)
    labels = dict(zip(KEY, (range(n_layers), range(n_heads), CLASSES, range(d_model)), strict=True))
    pairs = SCORES["fewer"]["n_pairs"], np.full((n_layers, len(CLASSES)), 10**6)
    columns = {"mean": mean, "centred_mean": centred, "ln_bias_mean": np.broadcast_to(np.float32(0), shape)}
    return Dense.of({**labels, **columns, "n_pairs": pairs}, KEY)


def rows(quick: bool) -> Iterator[Row]:
    n_layers, n_heads, d_model, part = (8, 8, 1_024, 2) if quick else (80, 64, 8_192, 2)
    workload = f"{n_layers} layers, {n_heads} heads, {len(CLASSES)} classes, {d_model:,} dimensions"
    with tempfile.TemporaryDirectory() as directory:
        arrays, tidy = (Path(directory) / f"scores.{ending}" for ending in ("safetensors", "parquet"))
        arrays_in_memory = scores(n_layers, n_heads, d_model)
        n_rows = len(arrays_in_memory)
        arrays_in_memory.save(arrays)
        table = arrays_in_memory(layer=range(part))
        table.to_parquet(tidy, index=False)
        row_bytes = table.memory_usage(deep=True).sum() / len(table)
        expected = arrays_in_memory(layer=LAYER, head=HEAD)
        sizes = [arrays.stat().st_size, tidy.stat().st_size * n_layers / part]
        del arrays_in_memory, table
        heads = {}

        def of_head() -> None:
            heads["arrays"] = Dense.load(arrays)(layer=LAYER, head=HEAD)

        def of_table() -> None:
            table_rows = pd.read_parquet(tidy)
            heads["table"] = table_rows[(table_rows["layer"] == LAYER) & (table_rows["head"] == HEAD)]

        contestants = {
            "open": lambda: Dense.load(arrays), "head": of_head, "read": lambda: pd.read_parquet(tidy),
            "of table": of_table,
        }  # fmt: skip
        seconds = alternate(contestants, repeats=1 if quick else 5)
        differ = max(
            float(np.abs(head_rows["mean"].to_numpy() - expected["mean"].to_numpy()).max())
            for head_rows in heads.values()
        )
        written = "{:,.2f} GB on disk, {:,.2f} GB as Parquet".format(*(size / 1e9 for size in sizes))
        yield note_only(
            f"{WHAT}, {n_rows:,} rows",
            workload,
            f"{written}; {row_bytes * n_rows / 1e9:,.1f} GB as a tidy table in memory",
        )
        for action, ours, theirs in (
            ("opened", "open", "read"),
            ("opened, and one head taken out", "head", "of table"),
        ):
            other = "pandas.read_parquet of the tidy table", seconds[theirs].times(n_layers / part)
            note = agrees("largest difference", differ, 0.0) if ours == "head" else ""
            yield row(f"{WHAT}, {action}", workload, seconds[ours], other=other, note=note)


if __name__ == "__main__":
    command(rows, __doc__)
