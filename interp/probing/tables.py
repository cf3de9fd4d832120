"""Question 4 in whole, on one model and one table of minimal pairs."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from interp.checks import whole_number
from interp.corpora import pairs as minimal_pairs
from interp.models import untrained
from interp.models.sites import Model, check_model
from interp.probing.accuracy import minimal_pair_accuracy
from interp.probing.causal import LEAST_ACCURACY, ablation_effect
from interp.probing.options import KS, ProbingOptions
from interp.probing.probes import pair_scores, probe
from interp.probing.shared import general, overlap, transfer
from interp.probing.split import split_tasks
from interp.probing.states import States, collect
from interp.probing.sweeps import SHOWN_L0_STRENGTH, Sweep, checked_options, sweep
from interp.results import provenance
from interp.run.passes import Passes, asks

_OF_A_STATE = {
    "transfer": ["train_task", "test_task", "state", "method", "l0_strength", "C", "accuracy", "pair_accuracy"],
    "general": ["task", "state", "trained_on", "method", "l0_strength", "C", "accuracy", "pair_accuracy"],
    "overlap": ["task_a", "task_b", "state", "jaccard", "expected", "cosine"],
    "ablation": ["task", "state", "mode", "set", "n_neurons", "accuracy_before", "accuracy_after"],
    "views": ["task", "state", "sentence", "position", "token", "score"],
}
_ABLATED = 100  # test pairs a task, at most
_VIEWED = 3  # tasks


@dataclass(frozen=True, eq=False)
class ProbingStudy(Sweep):
    """What `study` found: the tables of `sweep`, and those of one state.

    - `tasks` (task, field, linguistics_term, n_pairs, bag_of_words, model_accuracy, n_judged): what is tested, and the
      share of test pairs whose good sentence the model itself finds more probable.
    - `transfer`, `general`, `overlap`, `ablation`: see the functions; all at `provenance["state"]`.
    - `views` (task, state, sentence, position, token, score): the sparse probe at every token of a test pair, the first
      of each of the three tasks on which the probes of `provenance["l0_strength"]` are most accurate.

    In `probes`, control `untrained` is the same architecture with random weights.
    """

    analysis: ClassVar[str] = "probing"

    tasks: pd.DataFrame
    transfer: pd.DataFrame
    general: pd.DataFrame
    overlap: pd.DataFrame
    ablation: pd.DataFrame
    views: pd.DataFrame

    @property
    def shown(self) -> dict[str, tuple[str, pd.DataFrame]]:
        tables = {"by_state": (f"accuracy of probes by state, mean over tasks: {self.where}", self.by_state)}
        if not self.general.empty:
            tables["never_seen"] = (f"probes on tasks they have not seen: {self.where}", self.never_seen)
        removed = f"neurons removed at state {self.provenance['state']}: {self.where}"
        return tables | {"ablation": (removed, self.ablated)}

    @property
    def largest_k(self) -> float:
        """The largest k of the top-k probes; NaN where there are none."""
        return float(self.probes.loc[self.probes["method"] == "topk:welch", "k"].astype(float).max())

    @property
    def by_state(self) -> pd.DataFrame:
        """Mean accuracies over tasks for each state: dense, sparse, the largest k, the controls, and words alone."""
        probes = self.probes
        sparse, largest = probes["l0_strength"] == self.provenance["l0_strength"], probes["k"] == self.largest_k
        columns = {}
        for name, method, control, at in (
            ("dense", "dense", "none", True),
            ("l0", "l0", "none", sparse),
            ("topk", "topk:welch", "none", largest),
            ("dense_flipped", "dense", "flip", True),
            ("dense_untrained", "dense", "untrained", True),
            ("l0_rotated", "l0", "rotation", sparse),
        ):
            part = probes[(probes["method"] == method) & (probes["control"] == control) & at]
            if not part.empty:
                columns[name] = part.groupby("state")["accuracy"].mean()
                if name in ("l0", "l0_rotated"):
                    columns[f"{name}_open"] = part.groupby("state")["open_fraction"].mean()
        columns["bag_of_words"] = probes[probes["control"] == "none"].groupby("state")["bag_of_words"].mean()
        return pd.DataFrame(columns).rename_axis("state").reset_index()

    @property
    def ablated(self) -> pd.DataFrame:
        """Mean changes over tasks by mode and set; in how many tasks the found neurons cost more than every match."""
        if self.ablation.empty:
            return pd.DataFrame(columns=["mode", "set", "n_tasks", "n_neurons", "magnitude", "accuracy", "margin"])
        table = self.ablation.assign(
            accuracy=self.ablation["accuracy_after"] - self.ablation["accuracy_before"],
            margin=self.ablation["margin_after"] - self.ablation["margin_before"],
        )
        out = table.groupby(["mode", "set"], sort=False).agg(
            n_tasks=("task", "nunique"), n_neurons=("n_neurons", "mean"), magnitude=("magnitude", "mean"),
            accuracy=("accuracy", "mean"), margin=("margin", "mean"),
        ).reset_index()  # fmt: skip
        least = table.groupby(["mode", "task", "set"])["accuracy"].min().unstack()
        worst = (least["found"] < least["matched"]).groupby("mode").sum()
        out["below_every_match"] = out["mode"].map(worst).where(out["set"] == "found")
        return out

    @property
    def never_seen(self) -> pd.DataFrame:
        """Probes of other tasks on a task they have not seen, means over tasks by what they were trained on."""
        return self.general.groupby(["method", "trained_on"], sort=False).agg(
            n_tasks=("task", "nunique"), accuracy=("accuracy", "mean"), pair_accuracy=("pair_accuracy", "mean"),
            n_open=("n_open", "mean"),
        ).reset_index()  # fmt: skip


@asks(ProbingOptions)
def study(model: Model, pairs: pd.DataFrame | str | os.PathLike[str], options: ProbingOptions) -> Passes[ProbingStudy]:
    """States, probes with controls, and at one state what tasks share and what ablation does.

    `pairs` is a table from `interp.corpora.pairs`, or anything `interp.corpora.pairs.load` reads. The best state is
    where the dense probes (or else all probes) are most accurate on the validation pairs, on average over tasks.

    The rest as in `collect` and `sweep`. Transfer, general probe, overlap and ablation use λ = .2 (or the nearest
    of `l0_strengths`) and the first seed; they are left out where `l0` is not among the methods, and the first three
    for a single task. Ablation is done on at most 100 test pairs of each task of which the model itself gets .6 and
    whose probe opens a gate or more, and at most half of them.

    Raises ValueError as the functions it is made of, and for a state that is not among the states.
    """
    yield []  # its forward passes are its own
    check_model(model)
    table = minimal_pairs.load(pairs, tasks=options.tasks, limit=options.limit)
    splits = split_tasks(table, None)
    progress, bos = options.progress, options.bos
    root = None if options.directory is None else Path(options.directory)
    fitting: dict[str, Any] = {
        "raw": options.raw,
        "steps": whole_number(options.steps, "steps", least=1),
        "device": options.fit_device or (str(model.W_U.device) if model.W_U.is_cuda else "cpu"),
    }

    def kept(part: str) -> Path | None:
        return None if root is None else root / part

    def collected(which: Model, part: str) -> States:
        return collect(
            which, table, states=options.states, position=options.position, bos=bos, directory=kept(part),
            progress=progress,
        )  # fmt: skip

    width = model.cfg.d_model
    names = ("methods", "controls", "selectors", "l0_strengths", "seeds")
    ks = [k for k in KS if k <= width] if options.ks is None else options.ks
    chosen = checked_options(width, ks=ks, **{name: getattr(options, name) for name in names})
    sparse, seeds = "l0" in chosen["methods"], chosen["seeds"]
    if "none" not in chosen["controls"] or not {"l0", "dense", "topk"} & set(chosen["methods"]):
        raise ValueError("a study needs control 'none' and one of the methods l0, topk, dense; others alone: sweep")
    states = collected(model, "states")
    if options.state != "best" and options.state not in states.states:
        raise ValueError(f"state {options.state} is not among the states {', '.join(map(str, states.states))}")
    found = sweep(states, **chosen, directory=kept("sweeps"), progress=progress, **fitting)
    nearest = min(chosen["l0_strengths"], key=lambda l0_strength: abs(l0_strength - SHOWN_L0_STRENGTH))
    by_chance = sweep(
        collected(untrained(model), "untrained-states"), methods=["l0", "dense"] if sparse else ["dense"],
        l0_strengths=[nearest], seeds=seeds[:1], controls=["none"], directory=kept("untrained-sweeps"),
        progress=progress, **fitting,
    )  # fmt: skip
    probes = pd.concat([found.probes, by_chance.probes.assign(control="untrained")], ignore_index=True)
    best = _best(found.probes) if options.state == "best" else options.state
    tested = table.iloc[[row for split in splits.values() for row in split.test]]
    described = _tasks(table, found, minimal_pair_accuracy(model, tested, bos=bos, progress=progress))
    shared: dict[str, pd.DataFrame] = {name: pd.DataFrame(columns=columns) for name, columns in _OF_A_STATE.items()}
    if sparse:
        at: dict[str, Any] = {"states": [best], "seed": seeds[0], **fitting}
        neurons = found.neurons[found.neurons["state"] == best]
        if len(splits) > 1:
            shared["transfer"] = transfer(states, l0_strengths=sorted({float(nearest), 1.0}), **at)
            shared["general"] = general(states, l0_strength=nearest, **at)
            shared["overlap"] = overlap(neurons)
        able = described.loc[described["model_accuracy"] >= LEAST_ACCURACY, "task"]
        fitted = [probe(found, task, best) for task in able]
        fitted = [one for one in fitted if 1 <= len(one.dims) <= states.width // 2]
        shared["ablation"] = ablation_effect(model, table, fitted, limit=_ABLATED, bos=bos, progress=progress)
        viewed = [probe(found, task, best) for task in _most_accurate(found.probes, best, nearest)]
        shared["views"] = pair_scores(model, tested, viewed, bos=bos)
    about = found.provenance | {"state": best, "l0_strength": float(nearest)}
    return ProbingStudy(
        provenance=provenance(model, states.settings, corpus=table.attrs["source"], **about),
        **(found.tables | {"probes": probes, "tasks": described} | shared),
    )


def _best(probes: pd.DataFrame) -> int:
    plain = probes[probes["control"] == "none"]
    dense = plain[plain["method"] == "dense"]
    by_state = (plain if dense.empty else dense).groupby("state")["validation_accuracy"].mean()
    return int(str(by_state.idxmax()))


def _most_accurate(probes: pd.DataFrame, state: int, l0_strength: float | int) -> list[str]:
    """The tasks on which sparse probes that read a neuron do best."""
    sparse = (probes["method"] == "l0") & (probes["control"] == "none") & (probes["l0_strength"] == l0_strength)
    part = probes[sparse & (probes["state"] == state) & (probes["n_open"] > 0)]
    return part.sort_values("accuracy", ascending=False, kind="stable")["task"].drop_duplicates().head(_VIEWED).tolist()


def _tasks(pairs: pd.DataFrame, found: Sweep, judged: pd.DataFrame) -> pd.DataFrame:
    table = pairs.groupby("UID", sort=False).agg(
        field=("field", "first"), linguistics_term=("linguistics_term", "first"), n_pairs=("UID", "size")
    )
    table["bag_of_words"] = found.probes.groupby("task")["bag_of_words"].first()
    own = judged.set_index("task")
    table["model_accuracy"], table["n_judged"] = own["accuracy"], own["n_pairs"]
    return table.rename_axis("task").reset_index()
