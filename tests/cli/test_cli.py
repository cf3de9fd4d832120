"""The command line as a user meets it."""

import dataclasses
import errno
import inspect
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pandas as pd
import pytest
from naming import naming
from processes import Command, without_room_for_output

from interp.__main__ import SPINS, run
from interp.analyses.attention import AttentionStudy
from interp.analyses.attention.tables import dry_run
from interp.analyses.encoding import EncodingStudy
from interp.analyses.frequency import FrequencyStudy
from interp.analyses.generation import GenerationStudy
from interp.analyses.registry import analyses
from interp.cli import main
from interp.cli.flags import complete_corpus, complete_model, complete_pairs, flag, numbers as parse_scales
from interp.corpora import unigrams
from interp.corpora.unigrams import Unigrams


@pytest.fixture
def corpus(tmp_path, texts):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(texts))
    return path


@pytest.fixture
def counts(tmp_path):
    Unigrams(np.arange(1, 68), "counts").save(tmp_path / "u.safetensors")
    return tmp_path / "u.safetensors"


@pytest.mark.e2e
def test_frequency_writes_a_run(hf_directory, corpus, counts, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["frequency", "--model", str(hf_directory("bert")), "--corpus", str(corpus), "--unigram", str(counts)]
    assert main([*arguments, "--scales", "0:1:0.5", "--out", str(out)]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    table = [line.split("\t") for line in lines]
    assert table[0][:3] == ["bias", "scale", "kl_unigram_model"]
    assert [row[:2] for row in table[1:4]] == [["ln", "0.0000"], ["ln", "0.5000"], ["ln", "1.0000"]]
    kl = pd.read_parquet(out / "frequency/kl.parquet")
    assert len(kl) == 9
    assert float(table[1][2]) == pytest.approx(kl["kl_unigram_model"][0], abs=1e-4)
    provenance = json.loads((out / "frequency/result.json").read_text())["provenance"]
    assert (provenance["mask_rate"], provenance["scales"]) == (0.12, [0, 0.5, 1])
    assert sorted(path.name for path in out.iterdir()) == ["frequency", "index.html"]
    assert main([*arguments, "--out", str(out)]) == 2
    assert "already holds frequency; choose another --out or add --overwrite" in capsys.readouterr().err
    assert main([*arguments, "--seed", "1", "--biases", "fc", "--overwrite", "--out", str(out)]) == 0
    assert json.loads((out / "frequency/result.json").read_text())["provenance"]["seed"] == 1
    assert main([*arguments, "--paper", "--overwrite", "--out", str(out)]) == 0
    assert list(pd.read_parquet(out / "frequency/kl.parquet")["scale"].unique()) == [0, 1]


def test_unigrams_command(hf_directory, corpus, texts, tmp_path, capsys):
    out = tmp_path / "counts.safetensors"
    assert main(["unigrams", "--model", str(hf_directory("gpt2")), "--corpus", str(corpus), "--out", str(out)]) == 0
    n = sum(len(text.split()) for text in texts)
    arguments = ["--model", str(hf_directory("gpt2")), "--corpus", str(corpus), "--out", str(out)]
    assert main(["unigrams", *arguments]) == 2, "no file is overwritten"
    assert capsys.readouterr().out.startswith(f"{n:,} tokens of ")


@pytest.mark.slow
def test_adding_counts(hf_directory, corpus, tmp_path, capsys):
    """Texts and files of counts are added up in one file, as if all the text had been counted at once."""
    gpt2 = ["--model", str(hf_directory("gpt2"))]
    more, files = tmp_path / "more.txt", [str(tmp_path / f"{name}.safetensors") for name in "abcd"]
    more.write_text("w1 w2 w3\nw4 w4\n")
    both = tmp_path / "both.txt"
    both.write_text(corpus.read_text().rstrip("\n") + "\n" + more.read_text())
    assert main(["unigrams", *gpt2, "--corpus", str(both), "--out", files[0]]) == 0
    assert main(["unigrams", *gpt2, "--corpus", str(corpus), "--add", str(more), "--out", files[1]]) == 0
    assert main(["unigrams", *gpt2, "--corpus", str(more), "--out", files[2]]) == 0
    assert main(["unigrams", *gpt2, "--add", files[2], "--add", files[1], "--add", str(more), "--out", files[3]]) == 0
    once, added, part, three = map(unigrams.load, files)
    assert once.counts.tolist() == added.counts.tolist()
    assert added.tokenizer == once.tokenizer is not None
    assert added.corpus == f"{corpus.name} + more.txt"
    assert part.n_tokens == 5
    assert three.counts.tolist() == (once.counts + 2 * part.counts).tolist()
    assert main(["unigrams", *gpt2, "--add", str(more), "--add", files[2], "--out", files[2], "--overwrite"]) == 0
    assert unigrams.load(files[2]).n_tokens == 10, "added to the existing file"
    capsys.readouterr()

    Unigrams(once.counts, "cased", "another").save(tmp_path / "cased.safetensors")
    Unigrams(np.arange(1, 60), "other").save(tmp_path / "other.safetensors")
    for wrong, message in (
        (["--add", str(tmp_path / "cased.safetensors")], "the unigram counts (cased) were made with another tokenizer"),
        (["--add", str(tmp_path / "other.safetensors")], "over 59 types, but this model's vocabulary has 67"),
        (["--add", str(tmp_path / "gone.safetensors")], "gone.safetensors' do not exist"),
        (["--add", str(tmp_path / "gone.txt")], "gone.txt' does not exist"),
        ([], "--corpus is missing"),
    ):
        assert main(["unigrams", *gpt2, *wrong, "--out", str(tmp_path / "x.safetensors")]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "x.safetensors").exists()


def test_bad_input_is_one_line_and_exit_code_2(hf_directory, corpus, counts, tmp_path, capsys):
    gpt2, bert = str(hf_directory("gpt2")), str(hf_directory("bert"))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("w1 w2\n")
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled/config.json").write_text("{}")
    (tmp_path / "pickled/pytorch_model.bin").write_bytes(b"x")
    (tmp_path / "noweights").mkdir()
    (tmp_path / "noweights/config.json").write_text("{}")
    Unigrams(np.arange(1, 60), "other").save(tmp_path / "other.safetensors")
    good = {"--model": gpt2, "--corpus": str(corpus), "--unigram": str(counts), "--out": str(tmp_path / "o")}
    cases = [
        ({"--model": str(tmp_path / "gone")}, "gone' does not exist; expected a Hugging Face directory"),
        ({"--model": str(tmp_path / "noweights")}, "has no weights; expected model.safetensors"),
        ({"--model": str(tmp_path / "pickled")}, "has only pickled weights (pytorch_model.bin)"),
        ({"--corpus": str(tmp_path / "gone.txt")}, "gone.txt' does not exist"),
        ({"--corpus": str(tmp_path / "empty.txt")}, "is empty"),
        ({"--corpus": str(tmp_path / "latin.txt")}, "is not UTF-8 text"),
        ({"--corpus": str(tmp_path / "short.txt")}, "or one text per row (--layout texts)"),
        ({"--unigram": str(tmp_path / "gone.json")}, "unigram counts"),
        ({"--unigram": str(tmp_path / "other.safetensors")}, "over 59 types, but this model's vocabulary has 67"),
        ({"--scales": "0,half,1"}, "--scales '0,half,1' is not a list of numbers"),
        ({"--scales": "0,nan"}, "not finite"),
        ({"--scales": "0:1:0.3"}, "not a whole number of steps"),
        ({"--scales": "0,0,1"}, "has a number twice"),
        ({"--scales": "0:1:1e-320"}, "at most 1,000 steps"),
        ({"--biases": "ln,ln"}, "has a name twice"),
        ({"--device": "cudaa"}, "device 'cudaa' cannot be used here"),
        ({"--scales": "1:0:0.5"}, "expected start:stop:step"),
        ({"--biases": "fc"}, "this model has no dense-layer bias b_FC"),
        ({"--biases": "bln"}, "unknown 'bln'"),
        ({"--limit": "0"}, "Invalid value for '--limit'"),
        ({"--seed": "x"}, "Invalid value for '--seed'"),
        ({"--mask-rate": "0.2"}, "mask_rate is for encoders"),
        ({"--model": bert, "--mask-rate": "2"}, "must lie between 0 and 1"),
        ({"--model": bert, "--mask-rate": "1e-9"}, "a higher share of masked tokens (--mask-rate)"),
        ({"--out": str(corpus / "x")}, "cannot be written to"),
        ({"--out": "/proc/interp"}, "cannot be written to"),
        ({"--colour": "red"}, "No such option"),
    ]
    for change, message in cases:
        arguments = ["frequency", *(part for pair in (good | change).items() for part in pair)]
        assert main(arguments) == 2, change
        captured = capsys.readouterr()
        assert captured.out == ""
        lines = [line for line in captured.err.splitlines() if not line.startswith("interp: note")]
        assert len(lines) == 1, (change, captured.err)
        assert lines[0].startswith("interp: error: ")
        assert message in lines[0], (message, lines[0])
    assert not (tmp_path / "o").exists() or not any((tmp_path / "o").iterdir()), "something half-written was left"


@pytest.mark.parametrize("arguments", [["frequency"], ["no-such-command"], ["frequency", "--model", "gpt2"]])
def test_usage_errors_are_one_line(arguments, capsys):
    assert main(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_paper_refuses_its_own_options(hf_directory, corpus, tmp_path, capsys):
    arguments = [
        "frequency",
        "--model",
        str(hf_directory("gpt2")),
        "--corpus",
        str(corpus),
        "--out",
        str(tmp_path / "o"),
    ]
    assert main([*arguments, "--paper", "--scales", "0,1"]) == 2
    assert "--paper sets --biases, --scales, --mask-rate and --bos itself" in capsys.readouterr().err


@pytest.mark.e2e
@pytest.mark.parametrize(("model", "mask_rate"), [("tiny-gpt2", None), ("tiny-bert", 0.12)])
def test_the_papers_protocol_of_frequency_by_model(model, mask_rate, corpus, tmp_path):
    assert main(["frequency", "--model", model, "--corpus", str(corpus), "--paper", "--out", str(tmp_path)]) == 0
    found = FrequencyStudy.load(tmp_path)
    assert found.provenance["mask_rate"] == mask_rate
    assert sorted(found.kl["scale"].unique()) == [0, 1]


def test_paths_are_checked_before_torch_is_imported(tmp_path):
    code = (
        "import sys; from interp.cli import main;"
        f"code = main(['frequency', '--model', '{tmp_path}/gone', '--corpus', 'bundled', '--out', '{tmp_path}/o']);"
        "assert code == 2; assert 'torch' not in sys.modules; assert 'transformer_lens' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_import_is_light():
    code = "import sys, interp; assert not {'torch', 'pandas', 'numpy', 'transformer_lens'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    import interp

    assert callable(interp.load)
    assert interp.corpora.__name__ == "interp.corpora"
    with pytest.raises(AttributeError, match=naming("nonsense")):
        interp.nonsense  # noqa: B018
    assert {"load", "observe", "frequency"} <= set(dir(interp))


@pytest.mark.slow
def test_transformer_lens_is_imported_with_a_model():
    """Importing it takes seconds; pages, listings and the functions of an analysis do not need it."""
    code = (
        "import sys, interp; from interp.cli import main\n"
        "for name in ('frequency', 'attention', 'encoding', 'probing', 'generation', 'pages', 'hooks', 'plots'):\n"
        "    module = getattr(interp, name); [getattr(module, public) for public in module.__all__]\n"
        "for name in ('models', 'corpora'): assert main([name]) == 0\n"
        "assert main(['page', 'nowhere']) == main(['compare', 'nowhere', 'there', '--out', 'x']) == 2\n"
        "assert 'transformer_lens' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("interp 0.")
    assert main([]) == 0
    assert "Commands:" in capsys.readouterr().out
    assert main(["frequency", "--help"]) == 0
    assert "--scales" in capsys.readouterr().out


def test_failures_exit_with_1_and_interrupts_with_130(hf_directory, corpus, counts, tmp_path, capsys, monkeypatch):
    arguments = ["frequency", "--model", str(hf_directory("gpt2")), "--corpus", str(corpus), "--unigram", str(counts)]
    for error, code, message in (
        (
            OSError(28, "No space left on device", "/d/a"),
            3,
            "interp: error: no room to write /d/a: No space left on device; make room and run the same command again",
        ),
        (OSError(5, "Input/output error"), 1, "interp: error: OSError: [Errno 5] Input/output error"),
        (
            KeyboardInterrupt(),
            130,
            "interp: error: stopped with nothing to resume from; the same command starts from the beginning",
        ),
    ):

        def fail(*_, error=error, **__):
            raise error

        monkeypatch.setattr("interp.analyses.frequency.tables.study", fail)
        assert main([*arguments, "--out", str(tmp_path / "o")]) == code
        assert capsys.readouterr().err.splitlines()[-1] == message


@pytest.mark.e2e
def test_page_of_several_runs(hf_directory, corpus, counts, tmp_path, capsys):
    for kind in ("gpt2", "bert"):
        arguments = ["--model", str(hf_directory(kind)), "--corpus", str(corpus), "--unigram", str(counts)]
        assert main(["frequency", *arguments, "--out", str(tmp_path / "runs" / kind)]) == 0
    capsys.readouterr()
    assert main(["page", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out.splitlines()
    for kind in ("bert", "gpt2"):
        found = FrequencyStudy.load(tmp_path / "runs" / kind).findings
        first = said.index(f"# findings: random-{kind} on corpus.txt") + 1
        assert said[first].startswith("Word frequency in the prediction head: Without b_LN")
        assert said[first + 1 : first + 1 + len(found[:4])] == [*map(str, found[:4])]
    assert said[-1] == f"written to {tmp_path / 'runs/index.html'}"
    page = (tmp_path / "runs/index.html").read_text(encoding="utf-8")
    assert "random-gpt2 on corpus.txt" in page
    assert "random-bert on corpus.txt" in page
    assert main(["page", str(tmp_path / "nowhere")]) == 2
    assert "does not exist; expected the --out of a run" in capsys.readouterr().err


def test_scales():
    assert parse_scales("0,0.5,1") == [0, 0.5, 1]
    assert parse_scales("0:1:0.1") == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]
    assert parse_scales("1") == [1]


@pytest.mark.e2e
def test_attention_writes_a_run(tmp_path, capsys):
    out = tmp_path / "run"
    arguments = ["attention", "--model", "tiny-bert", "--corpus", "bundled", "--limit", "40", "--out", str(out)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[1].split("\t") == ["layer", "cls", "sep", "comma_period", "other"]
    assert printed.splitlines()[2].split("\t")[0] == "0"
    study = AttentionStudy.load(out)
    assert len(study.scores) == 6 * 4 * 5 * 128
    assert (out / "index.html").stat().st_size < 12e6
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []
    assert main([*arguments, "--overwrite", "--layers", "2", "--scaled"]) == 0
    some = AttentionStudy.load(out)
    assert set(some.scores.table["layer"]) == {2}
    expected = study.scores(layer=2)["mean"].to_numpy() / np.sqrt(32)
    np.testing.assert_allclose(some.scores.table["mean"], expected, rtol=1e-9)


def test_attention_paper(shared, tmp_path, capsys):
    corpus, few = str(shared / "data/stsb/stsb-en-dev.csv"), ["--limit", "400"]
    assert (
        main(["attention", "--model", "tiny-bert", "--corpus", corpus, "--paper", *few, "--out", str(tmp_path / "run")])
        == 0
    )
    assert capsys.readouterr().out.splitlines()[2].split("\t")[0] == "0"
    study = AttentionStudy.load(tmp_path / "run")
    assert study.provenance["sample"] == 100
    assert study.attention["n_queries"].iloc[0] > 4_000, "attention of all 400 sentences"
    assert study.totals["layer"].min() == 0, "tables keep TransformerLens' numbers"
    of_sample = study.scores(layer=0, head=0, dim=0, key_class="cls")["n_pairs"].item()
    assert of_sample < 3_000


def test_attention_dry_run_only_needs_a_config(tmp_path, capsys):
    shape = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32}
    config = {"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 128256} | shape
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["attention", "--model", str(tmp_path), "--dry-run"]) in (0, 3), "by how much memory there is"
    printed = capsys.readouterr().out
    by_dimension, by_group = 32 * (2 * 4096 + 128 + 1 + 3 * 20), 20 * 4096  # the latter as means over heads
    sums = 8 * 32 * 4 * (by_dimension + by_group)
    scored = dry_run(str(tmp_path), None, {}).passes[1]
    assert scored.sums == pytest.approx(sums, rel=1e-4)
    assert scored.flops == 4 * 32 * 2 * 4096 * 4096, "a product with W_K for each class and layer"
    projections = 4096 * (4096 + 1024 + 1024 + 4096)
    forward = 2 * 32 * (projections + 3 * 4096 * 14336)
    assert f"{forward / 1e9:,.3f} GFLOP per token" in printed
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "mt5"}))
    assert main(["attention", "--model", str(tmp_path), "--dry-run"]) == 2
    assert "expected a causal language model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--corpus is missing"),
        (["--corpus", "bundled"], "--out is missing"),
        (["--corpus", "bundled", "--out", "x", "--layers", "one"], "not a list of whole numbers"),
        (["--corpus", "bundled", "--out", "x", "--layers", "6"], "0 … 5"),
        (
            ["--corpus", "bundled", "--out", "x", "--paper", "--scaled"],
            "--paper sets --sample, --scaled, --rule and --bos",
        ),
    ],
)
def test_attention_refuses(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["attention", "--model", "tiny-bert", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.e2e
def test_encoding_writes_a_run(tmp_path, capsys):
    arguments = ["encoding", "--model", "tiny-gpt2", "--corpus", "bundled", "--limit", "5", "--out"]
    assert main([*arguments, str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("target\tr2\tadj_r2")
    study = EncodingStudy.load(tmp_path / "run")
    assert set(study.pruning["order"]) == {"spearman", "slope", "random", "reverse"}
    assert len(study.neurons) == 4 * 192
    assert list(study.dynamics["step"])[-1] > 1_000
    assert (tmp_path / "run/index.html").stat().st_size < 12e6
    assert (
        main([*arguments, str(tmp_path / "paper"), "--paper", "--other", "bundled", "--weights", "least_norm,top"]) == 0
    )
    paper = EncodingStudy.load(tmp_path / "paper")
    assert set(paper.pruning["order"]) == {"spearman", "random"}
    assert set(paper.steering["shift"]) == {"regression"}
    assert set(paper.steering["weights"]) == {"least_norm", "top"}
    assert set(paper.steering["text"]) == {"fitted", "other"}
    capsys.readouterr()
    assert main([*arguments, str(tmp_path / "x"), "--unigram", "words.txt"]) == 2
    assert "words.txt' does not exist" in capsys.readouterr().err
    assert main([*arguments, str(tmp_path / "run")]) == 2
    assert "already holds encoding" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.e2e
def test_generate_writes_a_run(hf_directory, counts, texts, tmp_path, capsys, monkeypatch):
    run, corpus = tmp_path / "run", tmp_path / "long.txt"
    corpus.write_text("\n".join(f"{text} {text} {text}" for text in texts * 4))
    arguments = ["generation", "--model", str(hf_directory("gpt2")), "--corpus", str(corpus), "--unigram", str(counts)]
    arguments += ["--prompt-tokens", "3", "--new-tokens", "4"]
    tiny = ["--features", "tiny-gpt2", "--n", "12", "--scales", "0,1", "--decoders", "sample,greedy", "--seed", "3"]
    assert main([*arguments, *tiny, "--out", str(run)]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    table = [line.split("\t") for line in lines]
    assert table[0][:3] == ["decoder", "scale", "diversity"]
    assert [row[:2] for row in table[1:4]] == [["human", "nan"], ["sample", "0.0000"], ["sample", "1.0000"]]
    found = GenerationStudy.load(run)
    assert found.provenance["seed"] == 3
    assert found.provenance["mauve"]["features"] == "tiny-gpt2"
    assert len(found.texts) == 5 * 12
    assert sorted(path.name for path in run.iterdir()) == ["generation", "index.html"]
    assert "random-gpt2 on long.txt" in (run / "index.html").read_text(encoding="utf-8")
    assert main([*arguments, *tiny, "--out", str(run)]) == 2
    assert "already holds generation" in capsys.readouterr().err
    assert main([*arguments, "--paper", "--out", str(tmp_path / "paper")]) == 0
    paper = GenerationStudy.load(tmp_path / "paper").metrics
    assert paper["decoder"].nunique() == 6
    assert sorted(paper["scale"].dropna().unique()) == [i / 10 for i in range(11)]
    assert set(paper["n_texts"]) == {100}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"--decoders": "greedy,nucleus"}, "unknown 'nucleus'; expected one or more of greedy, beam, sample,"),
        ({"--decoders": "beam,beam"}, "has a name twice"),
        ({"--scales": "one"}, "is not a list of numbers"),
        ({"--scales": "0,1", "--paper": None}, "--paper sets --scaled, --scales, --decoders, --n and --bos itself"),
        ({"--corpus": "gone.txt"}, "gone.txt' does not exist"),
        ({"--model": "./gone"}, "does not exist"),
        ({"--features": "./gone"}, "does not exist"),
        ({"--unigram": "words.txt"}, "words.txt' does not exist"),
        ({"--n": "0"}, "Invalid value for '--n'"),
        ({"--n": "400"}, "texts of at least 60 tokens, expected 400; ask for fewer"),
        ({"--new-tokens": "120"}, "exceed this model's context of 128"),
        ({"--model": "tiny-bert"}, "does not continue text"),
    ],
)
def test_generate_refuses(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    good = {"--model": "tiny-gpt2", "--corpus": "bundled", "--out": "run"}
    assert main(["generation", *(part for pair in (good | options).items() for part in pair if part is not None)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_mauve_is_asked_for_before_torch_is_imported(tmp_path):
    code = (
        "import sys, importlib.util; importlib.util.find_spec = lambda name: None; from interp.cli import main;"
        "code = main(['generation', '--model', 'tiny-gpt2', '--corpus', 'bundled', '--features', 'tiny-gpt2', '--out', "
        f"'{tmp_path}/o']); assert code == 2; assert 'torch' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install 'interp[mauve]'" in run.stderr


def test_names_are_listed_and_completed(tmp_path, monkeypatch, capsys):
    """Both bundled models and corpora and those in a hub cache are."""
    hub = tmp_path / "hub"
    for kind, name in (("models", "models--openai--gpt9"), ("datasets", "datasets--nyu-mll--blimp")):
        (hub / name / "snapshots/0").mkdir(parents=True)
        (hub / name / "snapshots/0" / f"{kind}.txt").write_bytes(b"x" * 300_000)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    assert main(["models", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)["models"]}
    assert set(listed) == {"tiny-bert", "tiny-gpt2", "openai/gpt9"}
    assert listed["tiny-gpt2"]["parameters"] == sum(p.numel() for p in _parameters("tiny-gpt2"))
    assert (listed["openai/gpt9"]["where"], listed["openai/gpt9"]["size"]) == ("cached", "0.3 MB")
    assert main(["corpora", "--json"]) == 0
    where = {(row["name"], row["option"]): row["where"] for row in json.loads(capsys.readouterr().out)["corpora"]}
    assert where["bundled", "--corpus"] == where["bundled", "--pairs"] == "bundled"
    assert where["blimp", "--pairs"] == "cached"
    assert where["jblimp", "--pairs"] == where["multiblimp/LANGUAGE", "--pairs"] == "hub"
    assert where["wikipedia", "--corpus"] == "hub"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "o-model").mkdir()
    (tmp_path / "o.txt").touch()
    assert complete_model("o") == ["openai/gpt9", "o-model/"]
    assert complete_corpus("o") == ["openwebtext", "o-model/", "o.txt"]
    assert complete_model("tiny-b") == ["tiny-bert"]
    assert complete_pairs("") == ["bundled", "blimp", "jblimp", "multiblimp", "hub/", "o-model/", "o.txt"]


def _parameters(name):
    import transformers

    from interp.support.paths import BUNDLED

    return transformers.AutoModelForCausalLM.from_pretrained(BUNDLED / name).parameters()


@pytest.mark.slow
def test_json_contains_the_tables(hf_directory, corpus, counts, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["frequency", "--model", str(hf_directory("bert")), "--corpus", str(corpus), "--unigram", str(counts)]
    assert main([*arguments, "--json", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["written"] == str(out / "index.html")
    kl = pd.read_parquet(out / "frequency/kl.parquet")
    np.testing.assert_allclose([row["js"] for row in found["kl"]], kl["js"], rtol=1e-9)
    assert main(["attention", "--model", str(hf_directory("bert")), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_layers"] == 2


@pytest.mark.e2e
def test_an_output_that_is_closed(hf_directory, corpus, counts, tmp_path):
    """The result is still written completely."""
    command = [sys.executable, "-m", "interp", "frequency", "--model", str(hf_directory("gpt2"))]
    command += ["--corpus", str(corpus), "--unigram", str(counts), "--out", str(tmp_path / "out")]
    run = subprocess.run(f"{shlex.join(command)} >&-", shell=True, capture_output=True, text=True, check=False)
    errors = "".join(line for line in run.stderr.splitlines(True) if not line.startswith("read in rows of"))
    assert (run.returncode, errors) == (0, "")
    assert FrequencyStudy.load(tmp_path / "out").kl.notna().all(axis=None)


@pytest.mark.e2e
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_is_full(hf_directory, corpus, counts, tmp_path):
    command = ["frequency", "--model", hf_directory("gpt2"), "--corpus", corpus, "--unigram", counts]
    _, said = Command([*command, "--out", tmp_path / "out"], prepare=without_room_for_output).end(3)
    errors = [line for line in said.splitlines() if not line.startswith("read in rows of")]
    left = "No space left on device; all files that were saved are complete"
    assert errors == [f"interp: error: standard output cannot be written to: {left}"]
    assert FrequencyStudy.load(tmp_path / "out").kl.notna().all(axis=None)


def test_a_run_that_cannot_be_written_to(hf_directory, corpus, counts, tmp_path, capsys, monkeypatch):
    """On a read-only file system, even root may not write."""
    command = ["frequency", "--model", str(hf_directory("gpt2")), "--corpus", str(corpus), "--unigram", str(counts)]
    out = tmp_path / "out"
    assert main([*command, "--out", str(out)]) == 0
    capsys.readouterr()

    def refused(*given, **options):
        raise OSError(errno.EROFS, "Read-only file system", str(out / "index.html"))

    monkeypatch.setattr("interp.pages.page.replacing", refused)
    assert main(["page", str(out)]) == 2
    assert capsys.readouterr().err == (
        f"interp: error: {out / 'index.html'} cannot be written to: Read-only file system; choose another directory\n"
    )
    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    assert main(["page", str(out)]) == 2
    assert capsys.readouterr().err == (
        f"interp: error: output directory {out} cannot be written to: Read-only file system\n"
    )


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from interp.cli import main\n"
        "assert main(['attention', '--help']) == 0\n"
        "print(*({'torch', 'transformers', 'transformer_lens', 'pandas'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.split() == []
    assert "--key-classes" in done.stdout


@pytest.mark.parametrize("name", analyses())
def test_every_option_of_a_function_is_a_flag_of_its_command(name, capsys):
    analysis = analyses()[name]
    keywords = set(inspect.signature(resolve_name(analysis.answer)).parameters) - {"model", "text", "pairs"}
    assert keywords == {item.name for item in dataclasses.fields(analysis.options)}
    assert main([name, "--help"]) == 0
    told = capsys.readouterr().out
    for keyword in keywords - {"progress", "directory"}:
        assert flag(keyword) in told, keyword


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--context", "129"], "context must be 3 … 128 tokens for this model, found 129"),
        (["--layout", "rows"], "expected one of packed, texts"),
        (["--dtype", "int8"], "unknown 'int8'; expected one of float32, bfloat16, float16, float64, auto"),
        (["--revision", "main"], "revision and checkpoint are for hub names"),
        (["--checkpoint", "-1"], "expected 0 or more"),
        (["--biases", "ln", "--paper"], "leave them out"),
        (["--limit", "3", "--shard", "2/2"], "expected I/N"),
    ],
)
def test_options_of_real_models_are_checked(options, message, tmp_path, capsys):
    arguments = ["frequency", "--model", "tiny-gpt2", "--corpus", "bundled", "--out", str(tmp_path / "o")]
    assert main([*arguments, *options]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "note" not in line]
    assert message in line
    assert not (tmp_path / "o").exists()


@pytest.mark.e2e
def test_context_layout_and_dtype_reach_the_model(tmp_path, capsys):
    arguments = ["frequency", "--model", "tiny-gpt2", "--corpus", "bundled", "--limit", "40", "--out", str(tmp_path)]
    assert main([*arguments, "--context", "32", "--layout", "texts", "--dtype", "float64"]) == 0
    assert "read in rows of 32 tokens (texts)" in capsys.readouterr().err
    provenance = json.loads((tmp_path / "frequency" / "result.json").read_text())["provenance"]
    assert (provenance["context"], provenance["layout"], provenance["dtype"]) == (32, "texts", "float64")


@pytest.mark.parametrize(("chosen", "spins"), [({}, SPINS), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)])
def test_threads_that_wait_sleep_unless_the_user_says_otherwise(monkeypatch, chosen, spins):
    monkeypatch.setattr(os, "environ", chosen)
    assert run("builtins:int") == 0
    assert os.environ.get("GOMP_SPINCOUNT") == spins
