"""Two directories of interp are the same to the last bit, or the difference is named."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import same_tables

import interp
from interp import corpora
from interp.results.dense import Dense
from interp.testing import toy_decoder

TEXT = ["w0 w0 w0 w1 w1 w2"] * 20


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one run, of two analyses."""
    run = tmp_path_factory.mktemp("kept") / "toy"
    model = toy_decoder()
    counts = corpora.count_unigrams(model, TEXT)
    interp.frequency.study(model, TEXT, unigram=counts, scales=[0, 1], progress=False).save(run)
    interp.attention.study(model, TEXT, key_classes={"first": [7, 8]}, progress=False).save(run)
    same_tables.keep_said(run)
    return run.parent


@pytest.fixture
def changed(kept: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    shutil.copytree(kept, tmp_path / "changed")
    return tmp_path / "changed"


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str]]:
    """The exit code, and the lines before the last one, which has the number of differences."""
    code = same_tables.main([str(argument) for argument in arguments])
    *lines, last = capsys.readouterr().out.splitlines()
    assert last.endswith(
        "all the same" if code == 0 else f": {sum('the same within' not in line for line in lines)} differences"
    )
    return code, lines


def edit(path: Path, **columns: object) -> None:
    """Replace columns of a table."""
    pd.read_parquet(path).assign(**columns).to_parquet(path, index=False)


def say(run: Path, *keys: object, value: object) -> None:
    """Replace something that a run says."""
    said = json.loads((run / "said.json").read_text())
    *outer, last = keys
    place = said
    for key in outer:
        place = place[key]
    place[last] = value
    (run / "said.json").write_text(json.dumps(said))


def test_equal_directories_are_the_same(kept, changed, capsys):
    result = json.loads((changed / "toy/frequency/result.json").read_text())
    result["provenance"] |= {"commit": "another", "model": "elsewhere/toy"}
    (changed / "toy/frequency/result.json").write_text(json.dumps(result))
    assert printed(capsys, kept, changed) == (0, [])
    assert printed(capsys, kept / "toy", changed / "toy") == (0, [])
    assert printed(capsys, kept / "toy/frequency", changed / "toy/frequency") == (0, [])


def test_what_a_run_says_is_made_where_it_is_not_kept(kept, changed, capsys):
    (changed / "toy/said.json").unlink()
    edit(changed / "toy/frequency/kl.parquet", delta_kl=0.5)
    _, lines = printed(capsys, kept, changed)
    assert any("Are predictions" in line and "value is" in line for line in lines)


def test_one_changed_bit_is_found(kept, changed, capsys):
    path = changed / "toy/frequency/kl.parquet"
    values = pd.read_parquet(path)["kl_unigram_model"].to_numpy().copy()
    before = values[1]
    values.view(np.uint64)[1] ^= 1
    edit(path, kl_unigram_model=values)
    code, [line] = printed(capsys, kept, changed)
    assert code == 1
    assert line.startswith(f"toy: frequency.kl.kl_unigram_model: 1 of {len(values)} values differ, first in row 1: ")
    assert f"{before} in A, {values[1]} in B; at most " in line
    assert printed(capsys, kept, changed, "--rtol", "1e-12") == (0, ["toy: frequency.kl: the same within 1e-12"])
    edit(path, kl_unigram_model=values * (1 + 1e-9))
    code, [line] = printed(capsys, kept, changed, "--rtol", "1e-12")
    assert code == 1
    assert line.endswith(", relatively 1e-09")


def test_zeros_differ_by_their_sign_and_nan_is_nan(kept, changed, tmp_path, capsys):
    shutil.copytree(kept, tmp_path / "zero")
    for place, value in ((tmp_path / "zero", 0.0), (changed, -0.0)):
        edit(place / "toy/frequency/kl.parquet", js=np.nan, perplexity=value)
    _, [line] = printed(capsys, tmp_path / "zero", changed)
    assert line.endswith("first in row 0: 0.0 in A, -0.0 in B; at most 0, relatively 0")
    edit(changed / "toy/frequency/kl.parquet", perplexity=0.0, js=1.0)
    _, [line] = printed(capsys, tmp_path / "zero", changed, "--rtol", "0.1")
    assert "nan in A, 1.0 in B" in line


def test_types_rows_and_order_of_columns(kept, changed, capsys):
    path = changed / "toy/frequency/kl.parquet"
    table = pd.read_parquet(path)
    edit(path, scale=table["scale"].astype(np.float32))
    assert printed(capsys, kept, changed)[1] == ["toy: frequency.kl.scale is float64 in A, and float32 in B"]
    table[table.columns[::-1]].to_parquet(path, index=False)
    assert printed(capsys, kept, changed)[1] == ["toy: frequency.kl: the columns are in another order"]
    table[1:].to_parquet(path, index=False)
    rows = f"toy: frequency.kl has {len(table)} rows in A, and {len(table) - 1} in B"
    assert printed(capsys, kept, changed)[1] == [rows]


def test_findings_captions_and_notes(kept, changed, capsys):
    run = changed / "toy"
    finding = json.loads((run / "said.json").read_text())["frequency"]["findings"][0]
    say(run, "frequency", "findings", 0, "verdict", value="partly")
    expected = f"toy: {finding['question']}: verdict is {finding['verdict']!r} in A, and 'partly' in B"
    assert printed(capsys, kept, changed) == (1, [expected])
    say(run, "frequency", "findings", 0, value=finding | {"value": finding["value"] * (1 + 1e-13)})
    assert printed(capsys, kept, changed)[0] == 1
    assert printed(capsys, kept, changed, "--rtol", "1e-12")[0] == 0
    say(run, "frequency", "findings", 0, value=finding)
    say(run, "attention", "captions", "attention", "title", value="Attention")
    code, [line] = printed(capsys, kept, changed)
    assert code == 1
    assert line.startswith("toy: attention.figures.attention: title is ")
    say(
        run, "attention", "captions", "attention", "title", value=line.partition("title is '")[2].partition("' in A")[0]
    )
    say(run, "attention", "notes", value=["a note"])
    code, [line] = printed(capsys, kept, changed)
    assert code == 1
    assert line.startswith("toy: attention: notes is [")
    assert line.endswith("and ['a note'] in B")


def test_findings_in_another_order(kept, changed, capsys):
    said = json.loads((changed / "toy/said.json").read_text())
    say(changed / "toy", "frequency", "findings", value=said["frequency"]["findings"][::-1])
    assert printed(capsys, kept, changed) == (1, ["toy: frequency: the findings are in another order"])


def test_what_has_no_partner(kept, changed, capsys):
    (changed / "toy/frequency/kl.parquet").unlink()
    (changed / "toy/attention/totals.parquet").rename(changed / "toy/attention/sums.parquet")
    say(changed / "toy", "frequency", "findings", value=[])
    code, lines = printed(capsys, kept, changed)
    assert code == 1
    assert "toy: table frequency.kl is only in A" in lines
    assert "toy: table attention.totals is only in A" in lines
    assert "toy: table attention.sums is only in B" in lines
    assert sum("finding" in line and "is only in A" in line for line in lines) == len(lines) - 3
    (changed / "toy").rename(changed / "other")
    assert printed(capsys, kept, changed)[1] == ["run toy is only in A", "run other is only in B"]


def test_renamed_tables_columns_and_figures(kept, changed, tmp_path, capsys):
    run, renames = changed / "toy", tmp_path / "renames.txt"
    path = run / "frequency/kl.parquet"
    pd.read_parquet(path).rename(columns={"js": "jensen_shannon"}).to_parquet(run / "attention/divergences.parquet")
    path.unlink()
    said = json.loads((run / "said.json").read_text())["attention"]["captions"]
    say(run, "attention", "captions", value={{"attention": "by_class"}.get(name, name): said[name] for name in said})
    renames.write_text("# nothing\n")
    assert len(printed(capsys, kept, changed, "--renames", renames)[1]) == 4
    renames.write_text(
        "frequency.kl -> attention.divergences  # moved\n\n"
        "attention.divergences.js -> attention.divergences.jensen_shannon\n"
        "attention.figures.attention -> attention.figures.by_class\n"
    )
    assert printed(capsys, kept, changed, "--renames", renames) == (0, [])


def test_what_is_gone_is_no_difference(kept, changed, tmp_path, capsys):
    run, renames = changed / "toy", tmp_path / "renames.txt"
    path = run / "frequency/kl.parquet"
    pd.read_parquet(path).drop(columns="js").to_parquet(path)
    captions = json.loads((run / "said.json").read_text())["attention"]["captions"]
    say(run, "attention", "captions", value={name: captions[name] for name in captions if name != "attention"})
    renames.write_text("frequency.kl.js ->\n")
    assert len(printed(capsys, kept, changed, "--renames", renames)[1]) == 1
    renames.write_text("frequency.kl.js ->  # not measured\nattention.figures.attention ->\n")
    assert printed(capsys, kept, changed, "--renames", renames) == (0, [])


def test_a_renamed_analysis(kept, changed, tmp_path, capsys):
    run, renames = changed / "toy", tmp_path / "renames.txt"
    (run / "attention").rename(run / "keys")
    result = json.loads((run / "keys/result.json").read_text())
    (run / "keys/result.json").write_text(json.dumps(result | {"analysis": "keys"}))
    said = json.loads((run / "said.json").read_text())
    (run / "said.json").write_text(json.dumps({{"attention": "keys"}.get(name, name): said[name] for name in said}))
    assert printed(capsys, kept, changed)[0] == 1
    renames.write_text("attention -> keys\n")
    assert printed(capsys, kept, changed, "--renames", renames) == (0, [])


@pytest.mark.parametrize(
    "line", ["a.b", "a ->", "a.b -> c", "a.b.c -> a.d.c", "a.figures.b -> a.b.c", "a.b.c.d -> a.b.c.e", "a. -> b.c"]
)
def test_renames_that_cannot_be(kept, tmp_path, capsys, line):
    renames = tmp_path / "renames.txt"
    renames.write_text(f"# renames\n{line}\n")
    assert same_tables.main([str(kept), str(kept), "--renames", str(renames)]) == 2
    assert f"line 2 of {renames} is '{line}'" in capsys.readouterr().err


def test_arrays_are_compared_with_their_labels(kept, changed, tmp_path, capsys):
    shutil.copytree(kept, tmp_path / "arrays")
    for place, label, value in ((tmp_path / "arrays", "comma", 1.0), (changed, "period", 2.0)):
        columns = {"layer": [0, 1], "key_class": ["first", label], "mean": np.array([[1.0, 2.0], [3.0, value]])}
        Dense.of(columns, dims=("layer", "key_class")).save(place / "toy/attention/large.safetensors")
    _, lines = printed(capsys, tmp_path / "arrays", changed)
    assert len(lines) == 2
    assert (
        "toy: attention.large.mean: 1 of 4 values differ, first in cell [1, 1]: 1.0 in A, 2.0 in B; at most 1, "
        in (lines[0])
    )
    assert "comma" in lines[1]
    assert "period" in lines[1]


def test_directories_without_results(kept, tmp_path, capsys):
    assert same_tables.main([str(kept), str(tmp_path)]) == 2
    assert "holds no result of interp; expected a result, a run or a directory of runs" in capsys.readouterr().err
