"""One run in many processes gives the same tables as in one; parts that do not belong together are refused."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st
from naming import naming

from interp import corpora
from interp.analyses.frequency import study
from interp.cli import main
from interp.passes import distributed, reading
from interp.passes.distributed import Part, parts_of, shard
from interp.passes.reading import part_of

COMMANDS = ["frequency", "attention", "encoding", "probing", "generation"]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def commands(hf_directory, tmp_path_factory):
    """Small command lines without --out, by name."""
    folder = tmp_path_factory.mktemp("inputs")
    rng = np.random.default_rng(0)
    draw = lambda n: " ".join(f"w{i}" for i in rng.zipf(1.5, size=n) % 60)  # noqa: E731
    (folder / "c.txt").write_text("\n".join(draw(int(n)) for n in rng.integers(5, 20, size=41)))
    pairs = [(f"{draw(4)} w1 {i}", f"{draw(4)} w2 {i}", task) for task in ("a", "b") for i in range(20)]
    table = pd.DataFrame(pairs, columns=["sentence_good", "sentence_bad", "UID"])
    table.assign(field="f", linguistics_term="t").to_json(folder / "p.jsonl", orient="records", lines=True)
    model = ["--model", str(hf_directory("gpt2"))]
    read = [*model, "--corpus", str(folder / "c.txt"), "--batch-size", "4"]
    return {
        "frequency": ["frequency", *read, "--scales", "0,1"],
        "attention": ["attention", *read],
        "encoding": ["encoding", *read],
        "probing": ["probing", *model, "--pairs", str(folder / "p.jsonl"), "--methods", "dense,random"],
        "generation": ["generation", *model, "--corpus", str(folder / "c.txt"), "--n", "5", "--prompt-tokens", "3",
                     "--new-tokens", "6", "--decoders", "greedy,sample", "--scales", "0,1"],
    }  # fmt: skip


@pytest.fixture(scope="module")
def alone(commands, tmp_path_factory):
    """The folder with the tables of a single process, by command."""
    out = tmp_path_factory.mktemp("alone")

    def of(name):
        if not (out / name).exists():
            assert main([*commands[name], "--out", str(out)]) == 0
        return out / name

    return of


def same(found, expected, *, rel=1e-12):
    """Check that files are the same: counts and words exactly, other numbers to a relative difference."""
    names = sorted(path.name for path in expected.glob("*.parquet"))
    assert names
    assert sorted(path.name for path in found.glob("*.parquet")) == names
    for name in names:
        one, other = pd.read_parquet(found / name), pd.read_parquet(expected / name)
        pd.testing.assert_frame_equal(one, other, rtol=rel, atol=1e-14)
        for column in one.select_dtypes("float"):
            if not np.any(other[column] % 1):
                assert one[column].equals(other[column]), f"{name}: counts in {column}"
    about, wanted = (json.loads((path / "result.json").read_text()) for path in (found, expected))
    assert about == wanted


def outcome(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    return code, capsys.readouterr()


@pytest.mark.slow
def test_torchrun_gives_what_one_process_gives(commands, alone, tmp_path):
    """All commands run in one launch of two processes."""
    script = tmp_path / "run.py"
    script.write_text(
        "import json, sys; from interp.passes import distributed; from interp.cli import main\n"
        "with distributed.group():\n    for line in json.loads(sys.argv[1]): assert main(line) == 0, line"
    )
    lines = [[*arguments, "--out", str(tmp_path / "out")] for arguments in commands.values()]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, script, json.dumps(lines)], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "interp: error" not in done.stderr
    for name in commands:
        same(tmp_path / "out" / name, alone(name))
    assert not [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


EVERY_TIME = [("frequency", 2), ("attention", 3), ("probing", 2)]
"""Commands and numbers of parts for every run; `make slow` runs the others."""


@pytest.mark.parametrize(
    ("name", "n"),
    [
        pytest.param(name, n, marks=[] if (name, n) in EVERY_TIME else [pytest.mark.slow])
        for name in COMMANDS
        for n in (1, 2, 3)
    ],
)
def test_shards_in_one_directory(name, n, commands, alone, tmp_path, capsys):
    """With two parts, all run a second time: the work that needs all parts is then divided too."""
    for _ in range(2 if n == 2 else 1):
        for index in range(n):
            code, said = outcome(capsys, *commands[name], "--out", tmp_path, "--shard", f"{index}/{n}")
            assert code == 0, said.err
            assert "run interp merge to make the result" in said.out
    assert not (tmp_path / name).exists()
    assert outcome(capsys, "merge", tmp_path)[0] == 0
    same(tmp_path / name, alone(name))


@pytest.mark.parametrize(
    "name", ["generation", *(pytest.param(name, marks=pytest.mark.slow) for name in ("attention", "probing"))]
)
def test_shards_in_directories_of_their_own(name, commands, alone, tmp_path, capsys):
    folders = [tmp_path / str(index) for index in range(3)]
    for index, folder in enumerate(folders):
        assert outcome(capsys, *commands[name], "--out", folder, "--shard", f"{index}/3")[0] == 0
    assert outcome(capsys, "merge", *folders)[0] == 0
    assert not [path for folder in folders[1:] for path in folder.iterdir()], "the merged parts are removed"
    same(folders[0] / name, alone(name))


def test_fewer_batches_than_parts(commands, alone, tmp_path, capsys):
    arguments = [*commands["frequency"], "--limit", "3"]
    assert outcome(capsys, *arguments, "--out", tmp_path / "alone")[0] == 0
    for index in range(4):
        assert outcome(capsys, *arguments, "--out", tmp_path / "parts", "--shard", f"{index}/4")[0] == 0
    assert outcome(capsys, "merge", tmp_path / "parts")[0] == 0
    same(tmp_path / "parts" / "frequency", tmp_path / "alone" / "frequency")


def test_merge_reads_what_no_part_has_read(commands, alone, tmp_path, capsys, monkeypatch):
    """One part never ran and one was killed: merge does these two and no others."""
    expected = alone("frequency")
    monkeypatch.setattr("interp.passes.reading.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    feed, seen = reading.feed, []
    monkeypatch.setattr("interp.passes.reading.feed", lambda *given: (seen.append(1), feed(*given)))
    assert outcome(capsys, *commands["frequency"], "--out", tmp_path / "alone")[0] == 0
    n_batches = len(seen)
    assert n_batches >= 4
    seen.clear()
    arguments = [*commands["frequency"], "--out", tmp_path]
    assert outcome(capsys, *arguments, "--shard", "0/3")[0] == 0
    whole_part = len(seen)

    def dying(*given):
        if len(seen) == whole_part + 1:
            raise KeyboardInterrupt
        seen.append(1)
        feed(*given)

    monkeypatch.setattr("interp.passes.reading.feed", dying)
    assert outcome(capsys, *arguments, "--shard", "1/3")[0] == 130
    monkeypatch.setattr("interp.passes.reading.feed", lambda *given: (seen.append(1), feed(*given)))
    assert outcome(capsys, "merge", tmp_path)[0] == 0
    same(tmp_path / "frequency", expected)
    assert len(seen) == n_batches, "every batch is read once"


def test_what_does_not_belong_together_is_refused(commands, tmp_path, capsys):
    one, two = tmp_path / "one", tmp_path / "two"
    frequency = commands["frequency"]
    corpus = tmp_path / "c.txt"
    shutil.copy(frequency[frequency.index("--corpus") + 1], corpus)
    own = [str(corpus) if word.endswith("c.txt") else word for word in frequency]
    assert outcome(capsys, *own, "--out", one, "--shard", "0/2")[0] == 0
    code, said = outcome(capsys, "merge", one, two)
    assert code == 2
    assert "found some in 1 of 2 directories" in said.err
    assert outcome(capsys, *own, "--out", two, "--bos", "--shard", "1/2")[0] == 0
    code, said = outcome(capsys, "merge", one, two)
    assert code == 2
    assert "with different options: --bos" in said.err
    code, said = outcome(capsys, "merge", one, tmp_path / "two" / ".." / "one")
    assert code == 2
    assert "found a directory twice" in said.err
    code, said = outcome(capsys, *own, "--out", two, "--shard", "1/2")
    assert code == 2
    assert "belongs to another run" in said.err
    assert "batches.bos" in said.err
    shutil.rmtree(two)
    corpus.write_text("\n".join(corpus.read_text().splitlines()[1:]))
    assert outcome(capsys, *own, "--out", two, "--shard", "1/2")[0] == 0
    code, said = outcome(capsys, "merge", one, two)
    assert code == 2
    assert "belongs to another run" in said.err
    assert "batches.fingerprint" in said.err
    part = two / ".frequency" / "pass-1.part-1-of-2.safetensors"
    for content in (part.read_bytes()[:-9], b"", part.read_bytes()[:-1] + b"\1"):
        part.write_bytes(content)
        code, said = outcome(capsys, "merge", two)
        assert code == 2
        assert "is damaged or is not a checkpoint" in said.err
        assert "part-1-of-2" in said.err
    for wrong in ("2/2", "1", "-1/2", "a/b"):
        code, said = outcome(capsys, *own, "--out", two, f"--shard={wrong}")
        assert code == 2
        assert "expected I/N with 0 ≤ I < N" in said.err


def test_states_of_other_sentences_are_refused(commands, tmp_path, capsys, monkeypatch):
    """Parts stopped before a fit, so that only their shards of hidden states show the difference."""
    monkeypatch.setattr("interp.analyses.probing.states.SENTENCES_PER_SHARD", 50)
    probe = commands["probing"]
    given = tmp_path / "p.jsonl"
    shutil.copy(probe[probe.index("--pairs") + 1], given)
    own = [str(given) if word.endswith("p.jsonl") else word for word in probe]
    folders = [tmp_path / "one", tmp_path / "two"]
    assert outcome(capsys, *own, "--out", folders[0], "--shard", "0/2")[0] == 0
    given.write_text(given.read_text().replace("w1", "w3"))
    assert outcome(capsys, *own, "--out", folders[1], "--shard", "1/2")[0] == 0
    for directories in (folders, folders[::-1]):
        code, said = outcome(capsys, "merge", *directories)
        assert code == 2
        assert "another run" in said.err


@pytest.mark.parametrize("command", ["unigrams", "page", "merge"])
def test_what_is_not_shared_out_is_refused(command, commands, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    arguments = {
        "unigrams": ["--model", "tiny-gpt2", "--corpus", "bundled", "--out", tmp_path / "u.json"],
    }
    code, said = outcome(capsys, command, *arguments.get(command, [tmp_path]))
    assert code == 2
    assert f"interp {command} runs in one process" in said.err
    assert not list(tmp_path.iterdir())


def test_a_part_without_a_directory_reads_all(load_toy, texts):
    model = load_toy("gpt2")
    counts = np.arange(67)
    whole = study(model, texts, unigram=counts, progress=False)
    with shard(0, 2):
        part = study(model, texts, unigram=counts, progress=False)
    pd.testing.assert_frame_equal(part.kl, whole.kl, check_exact=True)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 9), size=st.integers(1, 7), n_texts=st.integers(1, 25))
def test_every_batch_is_read_once_whatever_the_parts(n, size, n_texts):
    tokens = torch.arange(n_texts * 4).reshape(n_texts, 4)
    made = [corpora.batching.Batch(t, torch.ones_like(t), torch.ones_like(t).bool(), t) for t in tokens.split(size)]
    batches = corpora.Batches({}, n_texts, lambda: iter(made))
    parts = [[batch.tokens.tolist() for batch in part_of(batches, index, n)] for index in range(n)]
    whole = [batch.tokens.tolist() for batch in batches]
    assert sorted(batch for part in parts for batch in part) == whole
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert part_of(batches, 0, n).settings != part_of(batches, 0, n + 1).settings


@given(number=st.integers(0, 10**6), n=st.integers(1, 64))
def test_every_piece_of_work_belongs_to_one_part(number, n):
    assert sum(number in Part(index, n, grouped=False) for index in range(n)) == 1


def test_parts_of(tmp_path):
    path = tmp_path / "pass-1.safetensors"
    assert parts_of(path) == []
    for name in ("0-of-2", "0-of-3", "1-of-3"):
        (tmp_path / f"pass-1.part-{name}.safetensors").touch()
    (tmp_path / ".pass-1.part-9-of-9.safetensors.host-1.tmp").touch()
    (tmp_path / "pass-11.part-0-of-1.safetensors").touch()
    of = lambda n: [tmp_path / f"pass-1.part-{i}-of-{n}.safetensors" for i in range(n)]  # noqa: E731
    assert parts_of(path) == of(3), "the most files"
    (tmp_path / "pass-1.part-1-of-2.safetensors").touch()
    assert parts_of(path) == of(2), "all files"
    with shard(1, 4):
        assert parts_of(path) == of(4), "as many as run here"


def test_a_shard_is_a_part_while_it_runs():
    with shard(1, 3):
        assert distributed.part() == Part(1, 3, grouped=False)
        assert distributed.writes()
        with pytest.raises(distributed.Unmerged, match=naming("part 1", 3, "a", 1)):
            distributed.meet([distributed.Path("a"), distributed.Path("b")])
    assert distributed.part() == distributed._WHOLE
    for index, of in ((-1, 2), (2, 2), (0, 0)):
        with pytest.raises(ValueError, match=naming("i/n")), shard(index, of):
            pass
