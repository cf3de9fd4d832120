"""The harness of the benchmarks on contestants with known times, and the numbers that the README quotes."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from naming import naming
from toys import ROOT

import interp
from interp.testing import toy_encoder

CLASSES = {"cls": [2], "sep": [3], "comma_period": [7, 8]}
RATIO = re.compile(r"[\d.,]+ \([\d.,]+–[\d.,]+\)")


@pytest.fixture
def timing(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    import timing

    yield timing
    sys.modules.pop("timing")


def test_ratios_are_of_rounds(timing):
    slow, fast = timing.Measured([3.0, 8.0, 10.0]), timing.Measured([1.0, 2.0, 5.0])
    assert timing.ratio(slow, fast) == "3.00 (2–4)"
    assert timing.ratio(slow.times(100), fast) == "300 (200–400)"


@pytest.mark.e2e
def test_contestants_take_turns(timing):
    order: list[str] = []
    seconds = timing.alternate({name: lambda name=name: order.append(name) for name in "ab"}, repeats=2)
    assert "".join(order) == "ab" * 3, "one warm-up round and two measured ones"
    assert [len(one.seconds) for one in seconds.values()] == [2, 2]


@pytest.mark.e2e
def test_time_and_memory_are_measured(timing):
    def sleeps_and_holds() -> None:
        held = bytearray(b"x") * 50_000_000
        time.sleep(0.05)
        del held

    found = timing.alternate({"both": sleeps_and_holds}, repeats=1)["both"]
    assert found.seconds[0] >= 0.05
    if sys.platform == "linux":
        assert 45 < found.memory < 80


def test_rows(timing):
    ours = timing.Measured([1.0, 1.0])
    line = timing.row("what", "on", ours, other=("naive", timing.Measured([2.0, 2.0]).times(10)), note="n")
    assert line["it / interp"] == "20.00 (20–20)"
    assert line["compared with"] == "naive (a part timed, × 10)"
    table = timing.markdown([line, timing.note_only("counted", "there", "5 of 6")])
    assert table.splitlines()[0] == "| what | on | compared with | it / interp | interp, s | note |"
    assert table.splitlines()[-1] == "| counted | there |  |  |  | 5 of 6 |"


def test_what_disagrees_has_no_row(timing):
    assert timing.agrees("difference", 1e-7, 1e-6) == "difference: 1e-07"
    for difference in (1e-5, float("nan")):
        with pytest.raises(SystemExit, match=naming("difference", f"{difference:.1e}")):
            timing.agrees("difference", difference, 1e-6)


def quick(name):
    """The rows that a benchmark prints with `--quick`."""
    command = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / f"{name}.py"), "--quick", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("name", ["units", "together"])
def test_benchmarks_print_their_rows(name):
    ratios = [row[column] for row in quick(name) for column in ("it / interp", "interp / forward") if row[column]]
    assert ratios
    assert all(map(RATIO.fullmatch, ratios))


@pytest.mark.e2e
def test_every_benchmark_finds_what_it_imports():
    """In a process of its own, because some name modules as interp does. Peers are not installed for tests, and `topk`
    needs TransformerLens 4."""
    names = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__main__")
    lines = [f"try: import {name}\nexcept ModuleNotFoundError as error: print(error.name)" for name in names]
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(lines)],
        capture_output=True, text=True, check=False, cwd=ROOT / "benchmarks",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    missing = {name.split(".")[0] for name in run.stdout.split()}
    assert missing <= {"nnsight", "minicons", "skglm", "sae_probes", "transformer_lens"}


@pytest.mark.usefixtures("timing")
def test_what_an_interrupted_run_has_measured_is_kept_for_its_commit(tmp_path, monkeypatch):
    names = runpy.run_path(str(ROOT / "benchmarks" / "__main__.py"))
    once, asked, at = names["measured_once"], [], ["abc"]

    def measured(name, **how):
        asked.append((name, at[0]))
        return [{"what": name}]

    for name, value in {"KEPT": tmp_path, "commit": lambda: at[0], "measured": measured}.items():
        monkeypatch.setitem(once.__globals__, name, value)
    for at[0] in ("abc", "def", "abc", "abc-dirty", "abc-dirty"):
        assert once("units", sys.executable) == [{"what": "units"}]
    assert [where for _, where in asked] == ["abc", "def", "abc-dirty", "abc-dirty"]


@pytest.fixture
def papers(timing):
    import papers

    yield papers
    sys.modules.pop("papers")


def test_published_numbers_are_those_of_the_docs(papers):
    """Every number in the script is in the tables of docs/papers.md."""
    docs = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    short = lambda value: f"{value:g}".replace("0.", ".") if abs(value) < 1 else f"{value:.1f}"  # noqa: E731
    for name, values in papers.KL.items():
        cells = " | ".join(f"{value:.2f}".replace("0.", ".", 1) for value in values.values())
        assert f"| `{name}` | {cells} |" in docs
    for values in papers.TEXT.values():
        for scale, row in values.items():
            cells = [f"{value:.2f}".replace("0.", ".", 1) for value in row[:-1]]
            assert f"| {short(scale) if 0 < scale < 1 else scale} | {' | '.join(cells)} | {row[-1]:.1f} |" in docs
    for values in papers.CONTRIBUTIONS.values():
        assert ", ".join(short(value).replace("-", "−") for value in values) in docs
    assert all(str(neuron) in docs for neuron in papers.ENTROPY_NEURONS)


def test_what_was_not_measured_is_left_blank(papers):
    measured, missing = papers.table([papers.Number("a", 0.5, 0.2), papers.Number("b", float("nan"), 0.2)])
    assert measured == {"what": "a", "ours": "0.500", "published": "0.2", "difference": "+0.300"}
    assert missing == {"what": "b", "ours": "", "published": "0.2", "difference": ""}


def test_a_paper_has_numbers_of_some_models(papers, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["papers.py", "--paper", "1", "--model", "tiny-gpt2"])
    with pytest.raises(SystemExit, match=naming(2)):
        papers.main()
    assert "paper 1 has no numbers for tiny-gpt2; it has them for bert-base-cased" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.e2e
def test_a_paper_from_the_cache_of_the_hub(hf_directory, texts, tmp_path):
    """A small model has the name of a published one, and there is no network."""
    place = tmp_path / "hub" / "models--gpt2"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("abc")
    shutil.copytree(hf_directory("gpt2"), place / "snapshots" / "abc")
    (tmp_path / "text.txt").write_text("\n".join(texts))
    script = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / "papers.py"), "--paper", "1"]
    asked = ["--corpus", str(tmp_path / "text.txt"), "--n", "5", "--prompt-tokens", "3", "--new-tokens", "4"]
    offline = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    how = {"capture_output": True, "text": True, "check": False, "env": offline}
    run = subprocess.run([*script, "--model", "gpt2", *asked, "--out", str(tmp_path / "runs")], **how)
    assert run.returncode == 0, run.stderr
    kl = pd.read_parquet(tmp_path / "runs/frequency/kl.parquet").query("scale == 0")["kl_unigram_model"].item()
    assert f"| KL(u‖q) without b_ln | {kl:.3f} | 0.83 | {kl - 0.83:+.3f} |" in run.stdout
    assert "- differs: the text is text.txt, the paper's is webtext" in run.stdout
    assert "- differs: the run has 5 prompts, the paper 100" in run.stdout
    assert run.stdout.count("| perplexity, λ = ") == 3


@pytest.mark.slow
@pytest.mark.e2e
def test_probes_of_a_paper_from_the_cache_of_the_hub(tmp_path):
    """A small Llama has as many states as the table needs, and there are twenty pairs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from interp.testing import randomise, toy_tokenizer

    place = tmp_path / "hub" / "models--meta-llama--Meta-Llama-3-8B"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("abc")
    tokenizer = toy_tokenizer()
    sizes = {"hidden_size": 48, "intermediate_size": 48, "num_hidden_layers": 16, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **sizes))
    randomise(model)
    for part in (model, tokenizer):
        part.save_pretrained(place / "snapshots" / "abc")
    pairs = [{"sentence_good": f"w{i} w1 w2", "sentence_bad": f"w{i} w3 w2"} for i in range(20)]
    (tmp_path / "agreement.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    script = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / "papers.py"), "--paper", "4"]
    asked = ["--model", "meta-llama/Meta-Llama-3-8B", "--pairs", str(tmp_path / "agreement.jsonl")]
    offline = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    how = {"capture_output": True, "text": True, "check": False, "env": offline}
    run = subprocess.run([*script, *asked, "--out", str(tmp_path / "runs")], **how)
    assert run.returncode == 0, run.stderr
    probes = pd.read_parquet(tmp_path / "runs/probing/probes.parquet").query("control == 'none'")
    gates = probes.query("method == 'l0' and l0_strength == 0.2 and state == 16")["open_fraction"].mean()
    assert f"| gates open at λ = .2, state 16 | {gates:.3f} | 0.115 | {gates - 0.115:+.3f} |" in run.stdout
    top = probes.query("method == 'topk:welch' and k == 40 and state > 0")["accuracy"].mean()
    assert f"| accuracy of the top 40, mean over states (about) | {top:.3f} | 0.85 | {top - 0.85:+.3f} |" in run.stdout
    assert "| open gates that give 95 % of the baseline, states 10 to 15 (about) | " in run.stdout


@pytest.mark.e2e
def test_all_numbers_of_a_table_are_compared(papers, tmp_path):
    """A table of the published shape with made-up numbers: six layers and dimensions, twelve heads, four classes."""
    model = toy_encoder(num_hidden_layers=12, num_attention_heads=12, hidden_size=24)
    study = interp.attention.study(model, ["w0 w1 w2 w3"] * 20, key_classes=CLASSES, progress=False)
    study.save(tmp_path)
    places = [(2, 3), (2, 4), (6, 3), (6, 4), (12, 3), (12, 5)]
    rows = [
        (layer, head, dim, key_class, 0.5)
        for layer, dim in places
        for head in range(1, 13)
        for key_class in ("cls", "sep", "comma_period", "other")
    ]
    (tmp_path / "table1.csv").write_text(pd.DataFrame(rows, columns=papers.TABLE_1).to_csv(index=False))
    published = papers.read_table_1(tmp_path / "table1.csv")
    numbers, differs = papers.attention(lambda *args, **kwargs: tmp_path, "bert-base-uncased", published)
    of_table = [number for number in numbers if number.published == 0.5]
    assert len(of_table) == papers.N_CONTRIBUTIONS == len(rows)
    ours = study.scores(layer=5, head=1).query("key_class == 'sep' and dim == 3")["mean"].item()
    what = "layer 6 (block 5), head 2, dimension 3, sep"
    assert next(number.ours for number in of_table if number.what == what) == pytest.approx(ours)
    assert not any("--published" in line for line in differs)
    (tmp_path / "other.csv").write_text("layer,head\n")
    with pytest.raises(ValueError, match=naming("dim", "key_class", "value")):
        papers.read_table_1(tmp_path / "other.csv")


@pytest.fixture
def nulls(timing):
    import nulls

    yield nulls
    for name in ("nulls", "null_cells", "null_models", "null_atlases"):
        sys.modules.pop(name, None)


def test_a_cell_fails_if_it_errs_twice(nulls, tmp_path):
    """A coin that says yes in one of five draws, one in twenty, or in the first run only."""

    def cell(share, kind="null"):
        return nulls.Cell("toy", "is it?", "coins", kind, lambda rng: "yes" if rng.random() < share else "no", 400)

    often, seldom = (nulls.run(number, cell(share), tmp_path) for number, share in enumerate((0.2, 0.04)))
    assert (often.fails, seldom.fails) == (True, False)
    assert often.row["errors, 99 %"].startswith(f"{often.errors / 400:.1%} [")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-again.txt", "0.txt", "1.txt"]
    missed = nulls.Count(cell(0.2, "planted"), often.verdicts)
    assert missed.errors == often.verdicts["no"]
    assert nulls.run(2, cell(0.2), tmp_path, limit=20).row[""] == "untested"


def test_a_cell_goes_on_where_it_was_stopped(nulls, tmp_path):
    drawn = []

    def draw(rng):
        drawn.append(rng.random())
        return "no"

    cell = nulls.Cell("toy", "is it?", "coins", "null", draw, 30)
    nulls.run(0, cell, tmp_path)
    first, path = list(drawn), tmp_path / "0.txt"
    path.write_text("no\n" * 12 + "n")  # stopped within a line
    drawn.clear()
    assert nulls.run(0, cell, tmp_path).n == 30
    assert drawn == first[12:]


def test_every_cell_has_a_verdict(nulls):
    from null_cells import CELLS

    assert len({cell.name + cell.kind for cell in CELLS}) == len(CELLS)
    assert {cell.kind for cell in CELLS} == {"null", "planted"}
    for cell in CELLS:
        assert cell.draw(np.random.default_rng(0)) in ("yes", "partly", "no", "cannot tell")


def test_quoted_ratios_were_measured():
    """Every ratio in the README is also in benchmarks/RESULTS.md, which `make bench` writes."""
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    quoted = RATIO.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert quoted
    assert not [ratio for ratio in quoted if ratio not in results]
