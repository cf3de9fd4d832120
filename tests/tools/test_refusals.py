"""Bad settings for training are refused and leave nothing behind; numpy's numbers are accepted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naming import naming
from training import command, data, run as training
from workshop import BAD, TYPE, Case, Workshop, check_refused, quiet

from interp.support.disk import occupied


def train(w: Workshop, **options: Any) -> Path:
    texts = ["The girl sees the dog. The dog sees 12 rivers."] * 20
    tiny: Any = {"tokens": 200, "vocab_size": 270, "context": 16, "d_model": 8, "n_layers": 1, "n_heads": 2}
    tiny |= {"batch_size": 4, "threads": 1} | quiet
    return training.train("gpt2", data.Texts(texts, texts[:4]), out=w.root / "run", **(tiny | options))


def trained(w: Workshop, **options: Any) -> Any:
    """What `tools/train.py` runs."""
    given = {"kind": "gpt2", "corpus": w.corpus(), "tokens": "1e3", "out": w.root / "run"} | options
    line = [str(part) for key, value in given.items() for part in (f"--{key.replace('_', '-')}", value)]
    return command.app(line, standalone_mode=False)


CASES: dict[str, Case] = {
    "a command with infinitely many tokens": (
        BAD,
        ("tokens", "inf"),
        lambda w: trained(w, tokens="inf"),
    ),
    "a command to learn at NaN": (BAD, (0, "nan"), lambda w: trained(w, learning_rate="nan")),
    "a command to hold out NaN": (BAD, (0, 1, "nan"), lambda w: trained(w, held_out="nan")),
    "a command for a kind of no model": (BAD, ("gpt2", "bert", "'../x'"), lambda w: trained(w, kind="../x")),
    "training on NaN tokens": (TYPE, ("tokens", "nan"), lambda w: train(w, tokens=np.nan)),
    "training with infinitely many tokens": (
        TYPE,
        ("tokens", "inf"),
        lambda w: train(w, tokens=np.inf),
    ),
    "training backwards": (BAD, ("learning_rate", -0.001), lambda w: train(w, learning_rate=-1e-3)),
    "training at NaN": (BAD, ("learning_rate", "nan"), lambda w: train(w, learning_rate=np.nan)),
    "training by minus one": (BAD, ("batch_size", 1, -1), lambda w: train(w, batch_size=-1)),
    "training without heads": (BAD, ("n_heads", 1, 0), lambda w: train(w, n_heads=0)),
    "training by no threads": (BAD, ("threads", 1, -1), lambda w: train(w, threads=-1)),
    "training in no context": (BAD, ("context", 1, -3), lambda w: train(w, context=-3)),
    "training from a negative seed": (BAD, ("seed", 0, -1), lambda w: train(w, seed=-1)),
    "training kept at half a step": (TYPE, ("checkpoints", 0.5), lambda w: train(w, checkpoints=[0.5])),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop) -> None:
    check_refused(CASES[name], workshop)
    assert not (workshop.root / "run").exists(), "a refused training leaves nothing behind"


def test_a_second_training_in_the_same_directory(workshop: Workshop) -> None:
    out = workshop.root / "run"
    with occupied(out, f"trains a model in {out}"):
        with pytest.raises(FileExistsError, match=naming(out)):
            train(workshop)
        assert not list(out.iterdir())
    assert not out.exists()


@pytest.mark.usefixtures("untyped")
def test_numpy_numbers(workshop: Workshop) -> None:
    out = train(workshop, tokens=np.int64(200), batch_size=np.int32(4), seed=np.int64(3), checkpoints=np.arange(2))
    assert (out / "training.json").is_file()
