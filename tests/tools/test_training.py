"""Training like that of the bundled models, on a few hundred made-up paragraphs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from naming import naming
from processes import Command
from safetensors.torch import load_file
from toys import HELD_OUT, ROOT, TEXTS, TINY
from training import command, data as training_data, run as training
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from interp.corpora import unigrams

SCRIPT = ROOT / "tools" / "train.py"
KINDS = ("gpt2", "bert")
VOCAB = {"gpt2": 300, "bert": 90}


def run(kind: str, out: Path, texts: list[str] = TEXTS, **options: Any) -> Path:
    given = training_data.Texts(texts, HELD_OUT)
    return training.train(kind, given, out=out, **{**TINY, "vocab_size": VOCAB[kind], **options})


def record(out: Path) -> dict[str, Any]:
    return json.loads((out / "training.json").read_text())


def load(kind: str, where: Path) -> Any:
    auto = AutoModelForCausalLM if kind == "gpt2" else AutoModelForMaskedLM
    return auto.from_pretrained(where, dtype=torch.float32).eval()


def same(a: Path, b: Path) -> bool:
    x, y = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    return x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)


def stop_after(updates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    update, done = training.Run.update, []

    def killed(self: Any, step: int) -> float:
        if len(done) == updates:
            raise KeyboardInterrupt
        done.append(step)
        return update(self, step)

    monkeypatch.setattr(training.Run, "update", killed)


@pytest.fixture(scope="module", params=KINDS)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, run(request.param, tmp_path_factory.mktemp(request.param) / "run")


@pytest.mark.slow
def test_same_seed_gives_the_same_weights(finished: tuple[str, Path], tmp_path: Path) -> None:
    kind, out = finished
    assert same(out, run(kind, tmp_path / "again"))
    assert (out / "tokenizer.json").read_text() == (tmp_path / "again" / "tokenizer.json").read_text()
    assert not same(out, run(kind, tmp_path / "other", seed=1))


@pytest.mark.e2e
def test_killed_run_resumes_bit_for_bit(
    finished: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, out = finished
    monkeypatch.setattr(training, "SAVE_SECONDS", 0)
    for updates in (3, 4):
        with monkeypatch.context() as patch:
            stop_after(updates, patch)
            with pytest.raises(KeyboardInterrupt):
                run(kind, tmp_path / "run")
    assert training.load_resume(tmp_path / "run" / "resume.pt")["step"] == 7
    assert same(out, run(kind, tmp_path / "run"))
    for name in ("losses", "held_out", "tokens", "steps", "checkpoints"):
        assert record(out)[name] == record(tmp_path / "run")[name]
    assert not (tmp_path / "run" / "resume.pt").exists()


def test_checkpoint_of_another_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        with pytest.raises(KeyboardInterrupt):
            run("gpt2", tmp_path)
    with pytest.raises(ValueError, match=naming("learning_rate", 0.02, 0.01)):
        run("gpt2", tmp_path, learning_rate=0.02)
    with pytest.raises(ValueError, match=naming(tmp_path, "texts")):
        run("gpt2", tmp_path, TEXTS[1:])


@pytest.mark.e2e
def test_loss_falls(finished: tuple[str, Path]) -> None:
    losses = record(finished[1])["losses"]
    assert losses[-1]["loss"] < losses[0]["loss"] - 0.5
    assert losses[-1]["held_out"] < losses[0]["held_out"] - 0.5


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_trains_as_well(kind: str, tmp_path: Path) -> None:
    losses = record(run(kind, tmp_path, bf16=True))["losses"]
    assert losses[-1]["held_out"] < losses[0]["held_out"] - 0.5


def test_recorded_loss_is_that_of_the_saved_model(finished: tuple[str, Path]) -> None:
    kind, out = finished
    model, tokenizer = load(kind, out), AutoTokenizer.from_pretrained(out)
    held_out = record(out)["held_out"]
    if kind == "gpt2":
        stream = tokenizer("".join(training_data.END_OF_TEXT + text for text in HELD_OUT)).input_ids
        starts = [*range(0, len(stream) - 33, 32), len(stream) - 33]
        rows = torch.tensor([stream[start : start + 33] for start in starts])
        with torch.no_grad():
            logits = model(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        assert held_out["targets"] == rows[:, 1:].numel()
    else:
        data = training_data.Sentences(tokenizer.backend_tokenizer, HELD_OUT, 32)
        rng = np.random.default_rng(0)
        with torch.no_grad():
            parts = [data.predict(model, batch, rng) for batch in data.batches(32, None)]
        logits, targets = (torch.cat(part) for part in zip(*parts, strict=True))
        loss = torch.nn.functional.cross_entropy(logits, targets)
    assert held_out["loss"] == pytest.approx(loss.item(), abs=2e-3)
    assert held_out["perplexity"] == pytest.approx(np.exp(loss.item()), rel=2e-3)


def test_directory(finished: tuple[str, Path]) -> None:
    kind, out = finished
    training_record, tokenizer = record(out), AutoTokenizer.from_pretrained(out)
    steps = training_record["steps"]
    assert training_record["tokens"] >= TINY["tokens"]
    assert training_record["checkpoints"][0] == 0
    assert training_record["checkpoints"][-1] == steps
    assert {path.name for path in (out / "checkpoints").iterdir()} == {
        f"step-{step}" for step in training_record["checkpoints"]
    }
    last = load_file(out / "checkpoints" / f"step-{steps}" / "model.safetensors")
    assert all(weight.dtype == torch.float16 for weight in last.values())
    assert same(out, out / "checkpoints" / f"step-{steps}")
    assert not same(out, out / "checkpoints" / "step-0")

    ids = tokenizer(TEXTS, add_special_tokens=False).input_ids
    expected = np.bincount([i for row in ids for i in row], minlength=VOCAB[kind])
    assert load_file(out / "unigram.safetensors")["counts"].tolist() == expected.tolist()


def test_the_counts_are_taken_for_the_model_beside_them(finished: tuple[str, Path]) -> None:
    _, out = finished
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert unigrams.load(out / "unigram.safetensors").tokenizer == unigrams.tokenizer_hash(tokenizer)


def test_tokenizers(finished: tuple[str, Path]) -> None:
    kind, out = finished
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert len(tokenizer) == VOCAB[kind]
    if kind == "gpt2":
        assert tokenizer.bos_token_id == tokenizer.eos_token_id == tokenizer.unk_token_id == 0
        assert tokenizer.decode(tokenizer("Was  it “Élan”?\n").input_ids) == "Was  it “Élan”?\n"
    else:
        assert tokenizer.convert_ids_to_tokens(range(5)) == training_data.BERT_SPECIAL
        encoded = tokenizer("The GIRL.", "The gïrl.")
        words = ["[CLS]", "the", "girl", ".", "[SEP]", "the", "girl", ".", "[SEP]"]
        assert tokenizer.convert_ids_to_tokens(encoded.input_ids) == words
        assert encoded.token_type_ids == [0] * 5 + [1] * 4


@pytest.fixture(scope="module")
def wordpiece() -> Any:
    return training_data.train_tokenizer("bert", TEXTS, VOCAB["bert"])


def test_bert_examples_leave_nothing_out(wordpiece: Any) -> None:
    texts = [*TEXTS, "lamp " * 100]
    data = training_data.Sentences(wordpiece, texts, 32)
    assert len(data.stream) == sum(len(wordpiece.encode(text, add_special_tokens=False)) for text in texts)
    examples = data.examples(np.random.default_rng(0))
    assert examples[0, 0] == 0
    assert examples[-1, 2] == len(data.stream)
    assert (examples[1:, 0] == examples[:-1, 2]).all()
    assert (examples[:, 0] < examples[:, 1]).all()
    assert (examples[:, 1] <= examples[:, 2]).all()
    assert (examples[:, 1] < examples[:, 2]).sum() > 5
    batches = data.batches(8, np.random.default_rng(1))
    again = np.concatenate(batches)
    assert sum(data.size(batch) for batch in batches) == len(data.stream) + sum(2 + (again[:, 1] < again[:, 2]))


def test_bert_inputs_are_those_of_the_tokenizer(wordpiece: Any) -> None:
    data = training_data.Sentences(wordpiece, TEXTS, 32)
    batch = data.batches(64, np.random.default_rng(0))[0]
    seen = {}

    class Model:
        def bert(self, ids: torch.Tensor, **masks: torch.Tensor) -> Any:
            seen.update(masks, ids=ids)
            return type("Output", (), {"last_hidden_state": torch.arange(ids.numel()).view(*ids.shape, 1)})

        def cls(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden.float()

    chosen, targets = data.predict(Model(), batch, np.random.default_rng(0))
    ids = seen["ids"].clone()
    ids.view(-1)[chosen.flatten().long()] = targets
    for row, types, mask, (start, middle, end) in zip(
        ids, seen["token_type_ids"], seen["attention_mask"], batch.tolist(), strict=True
    ):
        first, second = data.stream[start:middle].tolist(), data.stream[middle:end].tolist()
        expected = [2, *first, 3, *second, 3] if second else [2, *first, 3]
        assert row[mask.bool()].tolist() == expected
        assert row[len(expected) :].eq(0).all()
        assert types[: len(expected)].tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1) * bool(second)
    words = (ids > 4).sum().item()
    masked = seen["ids"] == data.mask
    assert 0.1 * words < len(targets) < 0.2 * words
    assert 0.7 * len(targets) < masked.sum() < 0.9 * len(targets)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=naming("texts", "strings")):
        training_data.Texts("one string", HELD_OUT)
    with pytest.raises(ValueError, match=naming("held_out", "text")):
        training_data.Texts(TEXTS, ["", " "])
    with pytest.raises(ValueError, match=naming("d_mlp", "vocab_size, context")):
        run("gpt2", tmp_path, d_mlp=64)
    with pytest.raises(ValueError, match=naming("separator", "'tab'", "end of text, newline")):
        run("gpt2", tmp_path, separator="tab")
    with pytest.raises(ValueError, match=naming("decay", "'cosine'", "linear, none")):
        run("gpt2", tmp_path, decay="cosine")
    with pytest.raises(ValueError, match=naming("d_model", 16, "n_heads", 3)):
        run("bert", tmp_path, n_heads=3)
    with pytest.raises(ValueError, match=naming("vocab_size", 4096)):
        run("bert", tmp_path, vocab_size=4096)
    with pytest.raises(ValueError, match=naming("tokens", 1025)):
        run("gpt2", tmp_path, context=1024)
    with pytest.raises(ValueError, match=naming("checkpoints", [0, 10**6])):
        run("gpt2", tmp_path, checkpoints=[0, 10**6])
    assert not list(tmp_path.iterdir())
    (tmp_path / "notes.txt").touch()
    with pytest.raises(FileExistsError, match=naming(tmp_path)):
        run("gpt2", tmp_path)


def line(out: Path, **changes: object) -> list[str]:
    """Arguments of `tools/train.py` for a short run on the bundled text."""
    given = {"kind": "gpt2", "corpus": "bundled", "tokens": 1000, "batch_size": 4, "threads": 1, "out": out} | changes
    return [str(part) for key, value in given.items() for part in (f"--{key.replace('_', '-')}", value)]


@pytest.mark.slow
@pytest.mark.e2e
def test_the_script_trains(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, *line(tmp_path / "out")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"written to {tmp_path / 'out'}\n"
    assert record(tmp_path / "out")["settings"]["batch_size"] == 4
    _, again = Command(["train", *line(tmp_path / "out")]).end(2)
    assert again.endswith("is not empty and holds no unfinished run; pass another out or empty it\n")


def test_options_are_checked_before_torch_is_imported(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.append({str(SCRIPT.parent)!r}); from training.command import main;"
        f"assert main({line(tmp_path / 'o', kind='t5')}) == 2; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_help_lists_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(option in printed for option in line(Path(), held_out=0.1, learning_rate=1e-3, seed=0)[::2])


def test_nonsense_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "short.txt").write_text("\n".join(TEXTS))
    cases: list[tuple[dict[str, object], str]] = [
        ({"kind": "t5"}, "expected gpt2 or bert"),
        ({"held_out": 1}, "expected a share between 0 and 1"),
        ({"tokens": 0}, "Invalid value for '--tokens'"),
        ({"corpus": tmp_path / "gone.txt"}, "gone.txt' does not exist"),
        ({"corpus": tmp_path / "short.txt"}, "vocab_size is 4096; pass a vocab_size the text can fill, or more text"),
    ]
    for change, message in cases:
        assert command.main(line(tmp_path / "out", **change)) == 2
        said = capsys.readouterr().err
        assert said.startswith("interp: error: ")
        assert said.count("\n") == 1
        assert message in said
    assert command.main([]) == 2
    assert capsys.readouterr().err == "interp: error: Missing option '--kind'.\n"
    assert not (tmp_path / "out").exists()


def test_torchrun_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert command.main(line(tmp_path / "out")) == 2
    assert "train.py runs in one process; start it without torchrun" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
