"""Probes of the top k dimensions, against the k-sparse probes of TransformerLens 4.3 on the same samples.

`python benchmarks/topk.py [--quick]`, with TransformerLens 4.3 or newer. TransformerLens divides the samples of one
task into training and test samples; both libraries standardise them and fit with the same L2 penalty. TransformerLens
chooses dimensions by the difference of means and fits an intercept; interp chooses them by Welch's t and fits none.
"""

from collections.abc import Iterator
from functools import partial

from tasks import D, N, samples
from timing import Row, agrees, alternate, command, row
from transformer_lens.tools.analysis.sparse_probing import fit_sparse_probe

from interp.analyses.probing.sparse import SparseProbe


def rows(quick: bool) -> Iterator[Row]:
    X, y = (part[0] for part in samples(N, 1))
    inputs = X.numpy()
    labels = y.bool()
    strength = 1 / round(0.7 * N)
    options = {"test_fraction": 0.3, "preprocess": "standardize", "class_weight": None, "l2_strength": strength}
    split = fit_sparse_probe(X, labels, k=1, **options)
    train = split.train_indices
    test = split.test_indices
    classes = labels.numpy()

    def fit(k: int) -> tuple[SparseProbe, float]:
        probe = SparseProbe("topk", k=k).fit(inputs[train], classes[train])
        return probe, probe.score(inputs[test], classes[test])

    for k in (1, 16) if quick else (1, 16, 128):
        theirs = partial(fit_sparse_probe, X, labels, k=k, **options)
        seconds = alternate({"interp": partial(fit, k), "theirs": theirs}, repeats=1 if quick else 9)
        (probe, accuracy), peer_probe = fit(k), theirs()
        n_shared = int((probe.gate_[peer_probe.selected_features] > 0).sum())
        differ = agrees("difference of accuracy", abs(accuracy - peer_probe.metrics.accuracy), 0.02)
        yield row(
            f"probe of the top {k} dimensions", f"N = {N:,}, d = {D}", seconds["interp"],
            other=("TransformerLens 4.3, fit_sparse_probe", seconds["theirs"]),
            note=f"{n_shared} of {k} dimensions the same; {differ}",
        )  # fmt: skip


if __name__ == "__main__":
    command(rows, __doc__)
