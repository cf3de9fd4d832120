"""Several runs side by side: numbers, which must be those of each run's own tables, names, and refusals."""

import base64
import re
import shutil
from dataclasses import replace

import numpy as np
import plotly.io
import pytest
from naming import naming

from interp import pages
from interp.analyses import registry
from interp.analyses.encoding.page import sides as encoding_sides
from interp.analyses.frequency.page import sides as frequency_sides
from interp.analyses.probing.page import sides as probing_sides
from interp.cli import main
from interp.pages.compare import run_names
from interp.pages.page import Run, find_runs
from interp.results.result import Result
from interp.support import disk

MODELS = ("tiny-gpt2", "tiny-bert")


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    out = tmp_path_factory.mktemp("compare")
    return pages.write_comparison([report / name for name in MODELS], out)


def drawn(page, name):
    figure = plotly.io.read_json(page.parent / "comparison" / f"{name}.json")
    return {trace.name: (numbers(trace.x), numbers(trace.y)) for trace in figure.data if trace.line.dash != "dot"}


def numbers(values):
    """An array as plotly writes it to JSON."""
    if isinstance(values, dict):
        return np.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"])
    return np.asarray(values)


def test_each_run_has_a_trace_of_its_own_table(page, reported):
    for name in MODELS:
        kl = reported[name]["frequency"].kl.query("bias == 'ln'")
        scale, y = drawn(page, "frequency_kl_ln")[name]
        np.testing.assert_allclose(scale, kl["scale"])
        np.testing.assert_allclose(y, kl["kl_unigram_model"], atol=1e-5)
        seen = reported[name]["attention"].attention.query("key_class == 'comma_period'")
        depth, y = drawn(page, "attention_attention_0")[name]
        np.testing.assert_allclose(depth, np.arange(1, 7) / 6)
        np.testing.assert_allclose(y, seen.groupby("layer")["sum"].mean(), atol=1e-5)
        kept = reported[name]["encoding"].pruning.query("basis == 'axis' and order == 'spearman'")
        np.testing.assert_allclose(drawn(page, "encoding_pruning_axis")[name][1], kept["top1_agreement"], atol=1e-5)
        dense = reported[name]["probing"].probes.query("method == 'dense' and control == 'none'")
        np.testing.assert_allclose(
            drawn(page, "probing_dense")[name][1], dense.groupby("state")["accuracy"].mean(), atol=1e-5
        )
    assert set(drawn(page, "frequency_kl_ln")) == set(MODELS)
    assert not (page.parent / "comparison" / "frequency_kl_fc.json").exists(), "tiny-gpt2 has no b_FC"


def test_key_numbers_are_those_of_the_tables(reported):
    sides = frequency_sides({name: reported[name]["frequency"] for name in MODELS})
    for name in MODELS:
        kl = reported[name]["frequency"].kl.set_index(["bias", "scale"])["kl_unigram_model"]
        assert sides.numbers.loc[name, "kl"] == kl["ln", 1.0]
        assert sides.numbers.loc[name, "kl_without_ln"] == kl["ln", 0.0]
    added = sides.numbers["kl_without_ln"] - sides.numbers["kl"]
    least, most = (f"{one:+.3f} nats".replace("-", "−") for one in (added.min(), added.max()))
    assert f"from {least} in {added.idxmin()} to {most} in {added.idxmax()}" in sides.summary
    assert np.isnan(sides.numbers.loc["tiny-gpt2", "kl_without_fc"])
    encoded = encoding_sides({name: reported[name]["encoding"] for name in MODELS}).numbers
    fitted = reported["tiny-bert"]["encoding"].regression.set_index("target")["adj_r2"]
    assert encoded.loc["tiny-bert", "adj_r2"] == fitted["-log alpha"]


def test_the_page_says_what_was_compared(page):
    text = page.read_text(encoding="utf-8")
    assert "<title>interp · tiny-gpt2, tiny-bert</title>" in text
    assert text.count(">Settings that differ <") == 4
    assert "architecture" in text


def named(directory, model, corpus):
    return Run(directory, {"frequency": Result({"model": model, "corpus": corpus})})


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ([("a", "gpt2", "x"), ("b", "bert", "x")], ["gpt2", "bert"]),
        ([("a", "gpt2", "x"), ("b", "gpt2", "y")], ["x", "y"]),
        ([("step1", "gpt2", "x"), ("step2", "gpt2", "x")], ["step1", "step2"]),
        ([("a", "m/gpt2", "x"), ("b", "gpt2", "y"), ("c", "bert", "x")], ["a", "b", "c"]),
        ([("a", "gpt2", "x"), ("a", "gpt2", "y"), ("a", "bert", "x")], ["gpt2, x", "gpt2, y", "bert, x"]),
    ],
)
def test_runs_have_the_shortest_names_that_differ(tmp_path, about, expected):
    assert run_names([named(tmp_path / folder, model, corpus) for folder, model, corpus in about]) == expected


def test_a_directory_of_several_runs_gives_all(report, tmp_path):
    pages.write_comparison([report], tmp_path)
    assert set(drawn(tmp_path / "index.html", "frequency_kl_ln")) == set(MODELS)


def test_an_earlier_comparison_leaves_no_figures(report, tmp_path):
    pages.write_comparison([report], tmp_path)
    (tmp_path / "comparison" / "stale.json").write_text("{}")
    contents = tmp_path / "comparison" / disk.CONTENTS
    contents.write_text(contents.read_text().replace("[", '["stale.json", '))
    pages.write_comparison([report], tmp_path)
    assert not (tmp_path / "comparison" / "stale.json").exists()


def test_the_users_own_folder_of_figures_is_left_alone(report, tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "mine.txt").write_text("mine")
    pages.write_comparison([report], tmp_path)
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["mine.txt"]


def test_depth_is_relative_to_the_models_layers(reported):
    probed = {name: reported[name]["probing"] for name in MODELS}
    early = {name: replace(one, probes=one.probes[one.probes["state"] == 0]) for name, one in probed.items()}
    figures = probing_sides({name: replace(one, provenance=one.provenance | {"n_layers": 12, "state": 6})
                                for name, one in probed.items()}).figures  # fmt: skip
    assert [list(numbers(trace.x)) for trace in figures["dense"].data[:2]] == [[0, 0.25, 0.5]] * 2
    figures = probing_sides(
        {name: replace(one, provenance=one.provenance | {"state": 0}) for name, one in early.items()}
    ).figures
    assert list(numbers(figures["dense"].data[0].x)) == [0]
    older = {key: value for key, value in probed["tiny-bert"].provenance.items() if key != "n_layers"}
    with pytest.raises(ValueError, match=naming("tiny-bert", "n_layers")):
        probing_sides(probed | {"tiny-bert": replace(probed["tiny-bert"], provenance=older)})


def test_what_cannot_be_read_is_left_out_with_a_warning(report, tmp_path):
    for name in MODELS:
        shutil.copytree(report / name, tmp_path / name)
    shutil.copytree(report / "tiny-bert", tmp_path / ".left.by.a.kill")
    (tmp_path / "tiny-bert" / "frequency" / "kl.parquet").unlink()
    with pytest.warns(UserWarning, match="left out .*frequency: .* lacks kl"):
        runs = find_runs(tmp_path)
    assert [run.directory.name for run in runs] == sorted(MODELS)
    assert set(runs[0].results) == {"attention", "encoding", "probing"}
    for name in ("attention", "encoding", "probing"):
        shutil.rmtree(tmp_path / "tiny-bert" / name)
    (tmp_path / "tiny-gpt2" / "encoding" / "result.json").write_text("{")
    with pytest.warns(UserWarning, match="left out") as caught:
        assert [run.directory.name for run in find_runs(tmp_path)] == ["tiny-gpt2"]
    assert len(caught) == 2
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(FileNotFoundError, match=naming(tmp_path / "tiny-bert")),
    ):
        find_runs(tmp_path / "tiny-bert")


def test_what_cannot_be_compared_is_refused(report, tmp_path, capsys):
    one, two = (report / name for name in MODELS)
    with pytest.raises(ValueError, match=naming(1, "run")):
        pages.write_comparison([one], tmp_path)
    with pytest.raises(ValueError, match=naming(one)):
        pages.write_comparison([one, report], tmp_path)
    for held in (two, report):
        before = {path: path.stat().st_mtime_ns for path in held.iterdir()}
        with pytest.raises(ValueError, match=naming("results", "tiny-bert")):
            pages.write_comparison([one, two], held)
        assert {path: path.stat().st_mtime_ns for path in held.iterdir()} == before
    with pytest.raises(FileNotFoundError, match=naming(tmp_path)):
        pages.write_comparison([one, tmp_path], tmp_path / "out")
    for name, analysis in (("a", "frequency"), ("b", "attention")):
        shutil.copytree(one / analysis, tmp_path / name / analysis)
    with pytest.raises(ValueError, match=naming("frequency", "attention")):
        pages.write_comparison([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert main(["compare", str(one), str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_the_command_ends_with_what_was_found(report, reported, tmp_path, capsys):
    assert main(["compare", *(str(report / name) for name in MODELS), "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"written to {tmp_path / 'out' / 'index.html'}"
    assert {line for line in lines if line.startswith("# findings: ")} == {
        f"# findings: {result.where}" for name in MODELS for result in reported[name].values() if result.findings
    }
    said = [str(finding) for name in MODELS for result in reported[name].values() for finding in result.findings[:4]]
    for name in MODELS:
        said += {f"Note: {caveat}." for result in reported[name].values() for caveat in result.caveats}
        absent = reported[name]["frequency"].left_out  # of tiny-bert, which continues no text
        said += [f"left out: {what} of {name}: {why}" for what, why in absent.items()]
    titles = {f"{registry.load(part).title}: " for name in MODELS for part in reported[name]}
    answers = [line for line in lines if line.startswith(tuple(titles))]
    assert len(answers) == sum(len(results) for results in reported.values())
    more = [line for line in lines if re.match("[0-9]+ more answers? on the page: ", line)]
    hidden = [len(result.findings) - 4 for name in MODELS for result in reported[name].values()]
    assert sorted(int(line.split()[0]) for line in more) == sorted(number for number in hidden if number > 0)
    assert sorted(line for line in lines[:-1] if not line.startswith("#")) == sorted([*said, *answers, *more])


def test_the_comparison_in_a_browser(browser, page):
    browser.open(page)
    assert all(browser.run("plots.map(plot => plot.querySelectorAll('.scatterlayer path').length)"))
    assert browser.problems == []
    assert browser.requests == [page.as_uri()]


def test_runs_of_different_questions_are_not_named_by_what_they_read(tmp_path):
    """Texts and minimal pairs name runs only if the runs ask the same questions."""
    read = {"data": ("frequency", "data.txt"), "pairs": ("probing", "bundled pairs"), "tweets": ("frequency", "tweets")}
    runs = [
        Run(tmp_path / f"run-{name}", {analysis: Result({"model": "gpt2", "corpus": corpus})})
        for name, (analysis, corpus) in read.items()
    ]
    assert run_names(runs) == ["run-data", "run-pairs", "run-tweets"]
    assert run_names(runs[::2]) == ["data.txt", "tweets"]
    both = [
        Run(tmp_path / corpus, {
            "probing": Result({"model": "gpt2", "corpus": "bundled pairs"}),
            "frequency": Result({"model": "gpt2", "corpus": corpus}),
        })
        for corpus in ("a", "b")
    ]  # fmt: skip
    assert run_names(both) == ["a", "b"]
