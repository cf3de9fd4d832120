"""Several runs side by side on one page."""

import json
import os
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from interp.analyses import load, names
from interp.declare import find
from interp.disk.marks import check_own, check_page
from interp.figures.runs import Sides
from interp.figures.section import Section
from interp.pages.page import Part, keep_figures, render
from interp.pages.runs import Run, find_runs, saved_results, showing


def write_comparison(directories: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Write `out/index.html`: for each question that two runs or more have, their key numbers and one trace a run;
    the figures also as JSON in `out/comparison`, which holds nothing else.

    A directory that holds several runs gives all of them. Runs are named by what tells them apart: the model, the
    corpus, the directory, or as many of these as it takes.

    Raises FileNotFoundError for a directory without a result; ValueError for fewer than two runs, the same directory
    twice, runs that have no question in common, and an `out` that holds results or folders with them; FileExistsError
    where something that interp did not write has the name of the page or lies among the figures.
    """
    runs = [run for directory in directories for run in find_runs(directory)]
    if len(runs) < 2:
        raise ValueError(f"found {len(runs)} run in {_listed(directories)}; a comparison needs two or more")
    places = [run.directory.resolve() for run in runs]
    twice = [run.directory for run, place in zip(runs, places, strict=True) if places.count(place) > 1]
    if twice:
        raise ValueError(f"{twice[0]} is given twice; expected different runs")
    target = Path(out)
    if held := saved_results(target):
        raise ValueError(
            f"{target} holds results ({', '.join(map(str, held))}), whose page would be replaced; choose another "
            "directory"
        )
    parts: list[Part] = []
    kept: dict[str, go.Figure] = {}
    with showing(run.directory for run in runs):
        named = dict(zip(run_names(runs), runs, strict=True))
    for analysis in names():
        results = {name: run.results[analysis] for name, run in named.items() if analysis in run.results}
        with showing(run.directory / analysis for run in named.values() if analysis in run.results):
            declared = load(analysis) if len(results) > 1 else None
            sides = find(declared.sides)(results) if declared and declared.sides else None
        if declared and sides is not None and sides.figures:
            section = _section(sides, {name: one.provenance for name, one in results.items()})
            kept |= {f"{analysis}_{figure}": drawn for figure, drawn in section.figures.items()}
            parts.append((", ".join(results), declared, section))
    if not parts:
        has = "; ".join(f"{run.directory}: {', '.join(run.results)}" for run in runs)
        raise ValueError(f"these runs have no question in common ({has}); run the same analysis on each")
    check_own(target / "comparison")
    check_page(target)
    keep_figures(kept, target / "comparison")
    return render(target / "index.html", ", ".join(named), parts)


def _section(sides: Sides, about: dict[str, dict[str, Any]]) -> Section:
    numbers = sides.numbers.rename_axis("run").reset_index()
    numbers.insert(1, "model", [Path(one["model"]).name for one in about.values()])
    numbers.insert(2, "corpus", [one["corpus"] for one in about.values()])
    settings = {key: [json.dumps(one.get(key), ensure_ascii=False) for one in about.values()] for key in _keys(about)}
    differing = {key: values for key, values in settings.items() if len(set(values)) > 1}
    different = pd.DataFrame.from_dict(differing, orient="index", columns=list(about)).rename_axis("setting")
    return Section(
        summary=sides.summary,
        main=next(iter(sides.figures)),
        finding=sides.summary,
        definitions=sides.definitions,
        figures=sides.figures,
        tables={"Key numbers": numbers, "Settings that differ": different.reset_index()},
        provenance=about,
    )


def _keys(about: dict[str, dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for one in about.values() for key in one))


def run_names(runs: Sequence[Run]) -> list[str]:
    """The shortest names that differ, of model, corpus and directory; the corpus is that of a question which all runs
    ask, for those of different questions (a text, minimal pairs) are no names of runs."""
    models = [", ".join(_about(run, lambda about: Path(about["model"]).name)) for run in runs]
    directories = [run.directory.resolve().name for run in runs]
    known = [{"model": model, "directory": name} for model, name in zip(models, directories, strict=True)]
    shared = [analysis for analysis in runs[0].results if all(analysis in run.results for run in runs)]
    if shared:
        corpora = [[run.results[analysis].provenance["corpus"] for run in runs] for analysis in shared]
        most_different = max(corpora, key=lambda names: len(set(names)))
        known = [
            {"model": one["model"], "corpus": corpus, "directory": one["directory"]}
            for one, corpus in zip(known, most_different, strict=True)
        ]
    for number in range(1, len(known[0]) + 1):
        for chosen in combinations(known[0], number):
            names = [", ".join(one[key] for key in chosen) for one in known]
            if len(set(names)) == len(names):
                return names
    return [str(run.directory) for run in runs]


def _about(run: Run, of: Callable[[dict[str, Any]], str]) -> list[str]:
    return list(dict.fromkeys(of(result.provenance) for result in run.results.values()))


def _listed(directories: Sequence[str | os.PathLike[str]]) -> str:
    return ", ".join(map(str, directories)) or "no directory"
