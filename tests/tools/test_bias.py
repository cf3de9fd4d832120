"""The study of b_LN at toy size: it measures what interp measures, and finished runs are kept."""

from pathlib import Path
from typing import Any

import bias_study
import numpy as np
import pytest
import torch
from toys import HELD_OUT, TEXTS, TINY
from training import bias, data as training_data, run as training
from transformers import GPT2TokenizerFast

import interp
from interp.corpora.batching import Batch, Batches
from interp.corpora.unigrams import Unigrams

SMALL = {name: TINY[name] for name in ("context", "d_model", "n_layers", "n_heads", "batch_size", "learning_rate")}
SMALL |= {"vocab_size": 300, "warm_up": 2}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bias, "PLAIN", {**bias.PLAIN, **SMALL})
    monkeypatch.setattr(bias, "EVERY", 1)


def stirred(separator: training_data.Separator) -> Any:
    """A run whose model has a substantial b_LN, and gains that are not 1."""
    texts = training_data.Texts(TEXTS, HELD_OUT)
    settings = training.settings_of(
        "gpt2", texts, tokens=500, seed=0, checkpoints=(), every=1, **{**bias.PLAIN, **SMALL, "separator": separator}
    )
    made = training.Run(Path(), settings, *texts.read(settings), measure=training.held_out_loss)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
        made.model.transformer.ln_f.bias *= 10
    return made


@pytest.mark.quick("newline")
@pytest.mark.parametrize("separator", ["newline", "end of text"])
def test_measures_are_those_of_interp(separator: training_data.Separator, tmp_path: Path) -> None:
    run = stirred(separator)
    run.model.save_pretrained(tmp_path)
    end = training_data.END_OF_TEXT
    names = {"bos_token": end, "eos_token": end, "unk_token": end}
    GPT2TokenizerFast(tokenizer_object=run.tokenizer, **names).save_pretrained(tmp_path)
    found = bias.bias_effect(run)

    rows = run.held_out.stream.astype(np.int64)[
        np.concatenate(run.held_out.batches(99, None))[:, None] + np.arange(SMALL["context"] + 1)
    ]
    tokens, targets = torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])
    everywhere = torch.ones_like(tokens)
    batch = Batch(tokens, everywhere, everywhere.bool(), targets)
    effect = interp.frequency.study(
        interp.load(str(tmp_path)),
        Batches({}, None, lambda: iter([batch])),
        biases=["ln"],
        scales=[0, 1],
        unigram=Unigrams(run.data.counts, "the training text"),
        progress=False,
    )
    kl = effect.kl.set_index("scale")
    line = effect.projection.set_index("bias").loc["ln"]
    expected = {"held_out": np.log(kl["perplexity"][1]), "held_out_without": np.log(kl["perplexity"][0])}
    expected |= {"kl": kl["kl_unigram_model"][1], "kl_without": kl["kl_unigram_model"][0]}
    expected |= {"slope": line["slope"], "spearman": line["spearman"]}
    assert abs(expected["kl"] - expected["kl_without"]) > 0.05
    b, w_u = run.model.transformer.ln_f.bias.detach().double(), run.model.lm_head.weight.detach().double()
    expected |= {"norm": float(b.square().sum().sqrt())}
    expected |= {"cosine": float(b @ w_u.mean(0) / b.square().sum().sqrt() / w_u.mean(0).square().sum().sqrt())}
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_runs_are_trained_once_and_shown(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    line = ["train", "--corpus", str(tmp_path / "texts.txt"), "--tokens", "3000", "--out", str(tmp_path / "out")]
    line += ["--run", "plain", "--run", "beta2-0.95", "--seed", "0", "--seed", "1"]
    assert bias_study.main(line) == 0
    printed = capsys.readouterr().out
    ends, courses = printed.split("\n\n")
    assert [row.split(" | ")[0] for row in ends.splitlines()[2:]] == ["| plain"] * 2 + ["| beta2-0.95"] * 2
    assert len(courses.splitlines()) == 6

    measured = bias.histories(tmp_path / "out")
    last = measured[measured["run"] == "beta2-0.95"].iloc[-1]
    assert f"| {last['kl']:.3f} | {last['kl_without']:.3f} |" in ends.splitlines()[-1]
    assert measured.groupby(["run", "seed"])["step"].apply(list).map(tuple).nunique() == 1
    assert len(measured["kl"].unique()) == len(measured), "each run differs from the others"

    monkeypatch.setattr(bias, "train", None)  # nothing is left to train
    for again in (line, ["tables", str(tmp_path / "out")]):
        assert bias_study.main(again) == 0
        assert capsys.readouterr().out == printed
    line[4] = "4000"
    assert bias_study.main(line) == 2
    assert "seed-0: tokens: 3000, here 4000" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_was_killed_resumes(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = training_data.Texts(TEXTS, HELD_OUT)
    whole, parts = (tmp_path / name for name in ("whole", "parts"))
    bias.study(texts, ["clip-1"], tokens=3000, seeds=[0], out=whole)
    update = training.Run.update

    def killed(self: Any, step: int) -> float:
        if step == 7:
            raise KeyboardInterrupt
        return update(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(training.Run, "update", killed)
        with pytest.raises(KeyboardInterrupt):
            bias.study(texts, ["clip-1"], tokens=3000, seeds=[0], out=parts)
    measured = bias.histories(parts)
    assert measured["step"].tolist() == [4]
    assert bias.ends(measured)[0]["tokens"] == "0.00 of 0.00 M"
    bias.study(texts, ["clip-1"], tokens=3000, seeds=[0], out=parts)
    assert bias.histories(parts).equals(bias.histories(whole))


def test_every_run_changes_known_settings_of_the_plain_one() -> None:
    assert set(bias.PLAIN) == set(training.Settings.__annotations__)
    for name, changes in bias.RUNS.items():
        assert all(bias.PLAIN[key] != value for key, value in changes.items()), name


def test_what_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["train", "--corpus", "bundled", "--tokens", "1e3", "--out", str(tmp_path / "out"), "--run", "beta"]
    assert bias_study.main(line) == 2
    assert "unknown run 'beta'; expected one of plain, beta2-0.95" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert bias_study.main(["tables", str(tmp_path / "out")]) == 2
    assert "has no run of this study with measurements" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"warm_up": 4, "decay": "linear"}, [0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6]),
        ({"warm_up": 4, "decay": "none"}, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),
        ({"warm_up": 0.2, "decay": "linear"}, [0.5, 1.0, 1.0, 7 / 8, 6 / 8, 5 / 8]),
    ],
)
def test_schedules(changes: training.Settings, expected: list[float]) -> None:
    """Over ten steps, the rate rises to its peak, and then falls to zero or stays."""
    texts = training_data.Texts(TEXTS, HELD_OUT)
    size = SMALL["context"] * SMALL["batch_size"]
    chosen = {**bias.PLAIN, **SMALL, **changes}
    settings = training.settings_of("gpt2", texts, tokens=10 * size, seed=0, checkpoints=(), every=1, **chosen)
    run = training.Run(Path(), settings, *texts.read(settings), training.held_out_loss)
    rates = []
    for step in range(len(expected)):
        run.update(step)
        rates.append(run.optimiser.param_groups[0]["lr"] / SMALL["learning_rate"])
    assert rates == pytest.approx(expected)
