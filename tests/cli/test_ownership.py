"""In a home full of the user's own files, every file survives, whatever the command, flag and path."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys

import pandas as pd
import pytest
from naming import naming
from toys import run_command

import interp
from interp.cli import main
from interp.corpora.unigrams import Unigrams
from interp.passes.checkpoint import Checkpoint, kept
from interp.support import disk
from interp.support.paths import short_name

pytestmark = pytest.mark.e2e

OURS = ("frequency", "generation", "attention", "encoding", "probing", "report", "comparison", "figures")
COMMANDS = {
    "frequency": ["frequency", "--model", "tiny-bert", "--corpus", "bundled", "--limit", "5"],
    "attention": ["attention", "--model", "tiny-bert", "--corpus", "bundled", "--limit", "5"],
    "encoding": ["encoding", "--model", "tiny-gpt2", "--corpus", "bundled", "--limit", "5"],
    "probing": ["probing", "--model", "tiny-gpt2", "--pairs", "bundled", "--limit", "10"],
    "generation": ["generation", "--model", "tiny-gpt2", "--corpus", "bundled", "--n", "2"],
    "report": ["report", "--model", "tiny-bert", "--limit", "5", "--pair-limit", "10"],
    "report of two": ["report", "--limit", "5", "--pair-limit", "10"],
    "train": ["train", "--kind", "gpt2", "--corpus", "bundled", "--tokens", "100"],
}


@pytest.fixture
def home(tmp_path):
    """The user's files: folders with the names of interp's, pages, notes, hidden folders and links."""
    home = tmp_path / "home"
    home.mkdir()
    for name in (*OURS, *(f".{name}" for name in OURS), "tiny-bert", "tiny-gpt2"):
        (home / name).mkdir()
        (home / name / "thesis.tex").write_text(f"the {name} chapter")
    (home / "frequency" / "result.json").write_text(json.dumps({"result": "mine"}))
    (home / "tiny-bert" / "frequency").mkdir()
    (home / "tiny-bert" / "frequency" / "kl.parquet").write_text("mine")
    (home / "index.html").write_text("<title>My page</title>")
    (home / "notes.txt").write_text("remember")
    (home / "counts.safetensors").write_text("not counts")
    (home / ".index.html.somewhere-123.abc.tmp").write_text("mine")
    (home / ".frequency.old.tmp").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.txt").write_text("b")
    (home / "link").symlink_to(tmp_path / "elsewhere")
    (home / "file-link").symlink_to(home / "notes.txt")
    return home


def content(folder):
    """Every path below a folder, with what it is or contains."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink()
        else path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:left out")
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_of_the_users_is_touched(name, home, tmp_path, monkeypatch, capsys):
    before = content(tmp_path)
    monkeypatch.chdir(home)
    (tmp_path / "to-home").symlink_to(home)
    before = content(tmp_path)
    flags = [[]] if name == "train" else [[], ["--overwrite"]]
    for out, more in itertools.product((".", "../to-home", "link/..", str(home)), flags):
        where = out if out != "link/.." else os.path.join("frequency", "..")
        assert run_command([*COMMANDS[name], "--out", where, *more]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert re.search("interp did not (write|make)|not written by interp|is not empty|already holds", said), said
    assert content(tmp_path) == before


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run made by interp."""
    out = tmp_path_factory.mktemp("run") / "out"
    assert main([*COMMANDS["frequency"], "--out", str(out)]) == 0
    return out


def copied(run, folder):
    shutil.copytree(run, folder)
    return folder


def test_what_lies_in_a_result_is_not_lost(run, tmp_path, capsys):
    """Notes of the user inside interp's folders survive every flag."""
    for number, (where, what) in enumerate(
        {"frequency": "thesis.tex", "frequency/figures": "mine.json", "frequency/figures ": "mine.svg"}.items()
    ):
        out = copied(run, tmp_path / str(number))
        (out / where.strip() / what).write_text("mine")
        before = content(out)
        assert main([*COMMANDS["frequency"], "--out", str(out), "--overwrite"]) == 2
        assert f"holds {what}, which interp did not write" in capsys.readouterr().err
        if "figures" in where:
            assert main(["page", str(out)]) == 2
            assert f"holds {what}" in capsys.readouterr().err
        assert content(out) == before


def test_interps_own_is_replaced(run, tmp_path):
    out = copied(run, tmp_path / "out")
    (out / "notes.txt").write_text("remember")
    assert main([*COMMANDS["frequency"], "--out", str(out), "--overwrite"]) == 0
    assert main(["page", str(out)]) == 0
    assert (out / "notes.txt").read_text() == "remember"
    assert content(out).keys() == content(run).keys() | {"notes.txt"}
    assert disk.GENERATOR in (out / "index.html").read_text()


def test_page_and_compare(run, home, tmp_path, capsys):
    """`page` runs next to a page of the user's, and `compare` writes into a home."""
    out = copied(run, tmp_path / "out")
    (out / "index.html").write_text("mine")
    other = copied(run, tmp_path / "other")
    before = content(tmp_path)
    assert main(["page", str(out)]) == 2
    assert "index.html was not written by interp" in capsys.readouterr().err
    for where in (home, home / "link" / ".." / "home"):
        assert main(["compare", str(other), str(run), "--out", str(where)]) == 2
        assert "comparison is a folder that interp did not make" in capsys.readouterr().err
    assert content(tmp_path) == before
    (out / "index.html").unlink()
    (out / "index.html").symlink_to(other / "index.html")
    assert main(["page", str(out)]) == 2
    assert (out / "index.html").is_symlink()


def test_a_report_removes_only_results(run, home, tmp_path, capsys):
    """BERT writes no generation: --overwrite removes an earlier one by interp, but leaves the user's."""
    out = tmp_path / "out"
    (out / "generation").mkdir(parents=True)
    (out / "generation" / "poem.txt").write_text("mine")
    assert main([*COMMANDS["report"], "--out", str(out), "--overwrite"]) == 2
    assert "generation is a folder that interp did not make" in capsys.readouterr().err
    assert content(out) == {"generation": None, "generation/poem.txt": b"mine"}


@pytest.mark.slow
def test_counts_only_replace_counts(home, tmp_path, capsys):
    import numpy as np

    command = ["unigrams", "--model", "tiny-gpt2", "--corpus", "bundled", "--limit", "5", "--overwrite", "--out"]
    weights = interp.support.paths.BUNDLED / "tiny-gpt2" / "model.safetensors"
    (home / "model.safetensors").write_bytes(weights.read_bytes())
    (home / "link.safetensors").symlink_to(home / "model.safetensors")
    before = content(home)
    for name in ("counts.safetensors", "model.safetensors", "link.safetensors"):
        assert main([*command, str(home / name)]) == 2
        assert "does not hold token counts of interp" in capsys.readouterr().err
    assert content(home) == before
    for _ in range(2):
        assert main([*command, str(tmp_path / "new.safetensors")]) == 0
    with pytest.raises(FileExistsError, match=naming("notes.txt", "token counts")):
        Unigrams(np.arange(3), "mine").save(home / "notes.txt")
    assert content(home) == before


@pytest.mark.filterwarnings("ignore:left out")
def test_from_python(home, tmp_path, load_toy, texts):
    """`Result.save(overwrite=True)`, kept tables, states and the page, all in the user's folders."""
    import numpy as np

    model = load_toy("gpt2")
    effect = interp.frequency.study(model, texts, unigram=np.arange(1, 68), progress=False)
    pairs = pd.DataFrame({"sentence_good": ["w1 w2"], "sentence_bad": ["w2 w1"], "UID": ["t"]})
    (home / "states-00000.safetensors").write_text("mine")
    (home / "states").mkdir()
    (home / "states" / "states-00000.safetensors").write_text("mine")
    before = content(home)
    for call in (
        lambda: effect.save(home, overwrite=True),
        lambda: kept(Checkpoint(home / "counts.safetensors", {}), lambda: {"t": pd.DataFrame({"x": [1]})}),
        lambda: interp.pages.write_page(home),
    ):
        with pytest.raises((FileExistsError, FileNotFoundError, ValueError)):
            call()
    assert content(home) == before
    with pytest.raises(ValueError, match=naming("states-00000.safetensors", "checkpoint")):
        interp.probing.collect(model, pairs, directory=home / "states", progress=False)
    assert (home / "states" / "states-00000.safetensors").read_text() == "mine"


def test_what_a_running_process_writes_is_left_alone(tmp_path):
    """A lock shows that it runs, so process ids do not matter, nor the machine it runs on."""
    path = tmp_path / "a"
    writing = (
        "import sys, time; from pathlib import Path; from interp.support import disk\n"
        "with disk.replacing(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('theirs'); print('ready', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", writing, str(path)]
    theirs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in theirs:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    left = set(tmp_path.iterdir())
    assert len(left) == 2
    disk.tidy(path)
    assert set(tmp_path.iterdir()) == left, "both are alive"
    theirs[0].kill()
    theirs[0].communicate()
    (tmp_path / ".a.notes.tmp").write_text("the user's")
    with disk.replacing(path) as temporary:
        temporary.write_text("whole")
    assert path.read_text() == "whole"
    assert len(list(tmp_path.glob(".a.interp-*.tmp"))) == 1, "what the dead one left is gone"
    theirs[1].kill()
    theirs[1].communicate()
    disk.tidy(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".a.notes.tmp", "a"]


def test_a_rank_that_is_just_writing_is_not_in_the_way(tmp_path):
    def listed(folder):
        (folder / "later").touch()
        return []

    with disk.replacing(tmp_path / "started.json") as temporary:
        temporary.touch()
        disk.check_own(tmp_path, listed)
    with pytest.raises(FileExistsError, match=naming("later", 1, "interp")):
        disk.check_own(tmp_path, listed)


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_stands_in_for_a_result_stays(kind, tmp_path):
    """There is a link to another folder, or a file, where a result's folder should be."""
    elsewhere, target = tmp_path / "elsewhere", tmp_path / "frequency"
    elsewhere.mkdir()
    (elsewhere / "kept.txt").write_text("kept")
    target.symlink_to(elsewhere) if kind == "link" else target.write_text("x")
    before = content(tmp_path)
    with pytest.raises(FileExistsError, match=naming(target, kind, "interp")):
        with disk.replacing_directory(target):
            pass
    assert content(tmp_path) == before


def test_models_called_by_dots_stay_in_their_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [short_name(name) for name in (".", "..", "./", "a/..", "../..", "owner/model")]
    assert all(name not in (".", "..") and "/" not in name for name in names)
    assert names[0] == tmp_path.name
    assert names[5] == "model"
