"""Several runs side by side on one page."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pandas as pd

from interp.analyses.registry import load, names
from interp.figures.runs import Sides
from interp.figures.section import Section
from interp.pages.page import Part, Run, find_runs, keep_figures, render, saved_results
from interp.pages.undrawn import Written
from interp.results.result import Result
from interp.support.disk import check_own, check_page

__all__ = ["run_names", "write_comparison", "written_comparison"]


def write_comparison(directories: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Write a page that compares runs, `out/index.html`. For each question that two or more runs answer, it shows their
    key numbers and one trace per run. The figures are also saved as JSON in `out/comparison`.

    A directory with several runs contributes all of them. Runs are named by what distinguishes them: the model, the
    corpus, the directory, or several of these.

    Raises FileNotFoundError for a directory without a result. Raises ValueError for fewer than two runs, for one given
    twice, for runs that have no question in common, and if `out` holds results or folders with results.
    Raises FileExistsError if something that interp did not write has the name of the page or is among the figures.

    Examples:
        >>> import tempfile
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> classes = {"first": [7, 8]}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     runs = [f"{directory}/{seed}" for seed in (0, 1)]
        ...     for seed, run in enumerate(runs):
        ...         model = toy_decoder(seed=seed)
        ...         found = interp.attention.study(model, ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        ...         saved = found.save(run)
        ...     page = write_comparison(runs, f"{directory}/both")
        ...     print(page.name, page.is_file())
        index.html True
    """
    return written_comparison(directories, out).path


def written_comparison(directories: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Written:
    """Do what `write_comparison` does, and tell what could not be drawn."""
    target = Path(out)
    check_own(target / "comparison")
    check_page(target)
    runs: list[Run] = []
    for directory in directories:
        runs.extend(find_runs(directory))
    if len(runs) < 2:
        listed = ", ".join(map(str, directories)) or "no directory"
        raise ValueError(f"found {len(runs)} run in {listed}; a comparison needs two or more")
    places = set()
    for run in runs:
        if run.directory.resolve() in places:
            raise ValueError(f"{run.directory} is given twice; give each run once")
        places.add(run.directory.resolve())
    if saved := ", ".join(map(str, saved_results(target))):
        raise ValueError(f"{target} holds results ({saved}), whose page would be replaced; choose another directory")
    written = Written(target / "index.html")
    parts: list[Part] = []
    named = dict(zip(run_names(runs), runs, strict=True))
    for analysis in names():
        results = {name: run.results[analysis] for name, run in named.items() if analysis in run.results}
        if len(results) > 1:
            declared = load(analysis)
            of_runs = ", ".join(results)
            draw = partial(_drawn, declared.kind, results)
            section = written.attempt(f"interp {analysis} of {of_runs}", draw, partial(Section.undrawn, provenance={}))
            if section is not None:
                parts.append((of_runs, declared, section))
            if section is not None and not section.is_drawn:
                continue
        for result in results.values():
            drawing = f"interp {analysis} of {result.where}"
            findings = written.attempt(drawing, partial(getattr, result, "findings"), lambda note: None)
            written.results += [] if findings is None else [result]
    if not parts:
        has = "; ".join(f"{run.directory}: {', '.join(run.results)}" for run in runs)
        raise ValueError(f"these runs have no question in common ({has}); run the same analysis on each")
    figures = {}
    for _, declared, part in parts:
        for name, figure in part.figures.items():
            figures[f"{declared.name}_{name}"] = figure
    keep_figures(figures, target / "comparison")
    render(written, ", ".join(named), parts)
    return written


def _drawn(kind: type[Result], results: dict[str, Result]) -> Section | None:
    """The section that compares these results, by run; None if they have nothing in common to draw."""
    sides = kind.sides(results)
    if sides is None or not sides.figures:
        return None
    provenances = {name: result.provenance for name, result in results.items()}
    return replace(_section(sides, provenances), columns=kind.columns)


def _section(sides: Sides, provenances: dict[str, dict[str, Any]]) -> Section:
    numbers = sides.numbers.rename_axis("run").reset_index()
    numbers.insert(1, "model", [Path(provenance["model"]).name for provenance in provenances.values()])
    numbers.insert(2, "corpus", [provenance["corpus"] for provenance in provenances.values()])
    keys = list(dict.fromkeys(chain.from_iterable(provenances.values())))
    values = {}
    for run, provenance in provenances.items():
        values[run] = [json.dumps(provenance.get(key), ensure_ascii=False) for key in keys]
    settings = pd.DataFrame(values, index=pd.Index(keys, name="setting"))
    return Section(
        main=next(iter(sides.figures)),
        findings=(),
        notes=(sides.summary,),
        definitions=sides.definitions,
        figures=sides.figures,
        tables={"Key numbers": numbers, "Settings that differ": settings[settings.nunique(axis=1) > 1].reset_index()},
        provenance=provenances,
    )


def run_names(runs: Sequence[Run]) -> list[str]:
    """The shortest distinct names for runs, from model, corpus and directory. The corpus is used only if it belongs to
    a question that all runs ask, because different questions read different data (a text, minimal pairs)."""
    models = []
    folders = []
    for run in runs:
        names = dict.fromkeys(Path(result.provenance["model"]).name for result in run.results.values())
        models.append(", ".join(names))
        folders.append(run.directory.resolve().name)
    parts = [models]
    corpora = []
    for analysis in runs[0].results:
        if all(analysis in run.results for run in runs):
            corpora.append([run.results[analysis].provenance["corpus"] for run in runs])
    if corpora:
        parts.append(max(corpora, key=lambda names: len(set(names))))
    parts.append(folders)
    for number in range(1, len(parts) + 1):
        for chosen in combinations(parts, number):
            joined = list(map(", ".join, zip(*chosen, strict=True)))
            if len(set(joined)) == len(joined):
                return joined
    return [str(run.directory) for run in runs]
