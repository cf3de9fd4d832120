"""Makes bad input (damaged files, odd models, changed runs) and checks that it is refused."""

import copy
import json
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from naming import naming
from safetensors.torch import load_file, save_file
from toys import D_VOCAB, ROOT, run_command, toy

import interp
from interp import encoding
from interp.corpora.unigrams import Unigrams

MISSING, BAD, TYPE = FileNotFoundError, ValueError, TypeError
DEEP = b"[" * 100_000  # very deeply nested JSON
quiet: Any = {"progress": False}

_HOMES = str(Path(interp.__file__).parent), str(ROOT / "tools")


def one_by_one(values: Any) -> Iterator[Any]:
    yield from values


FORMS: dict[str, Callable[[Any], Any]] = {"a generator": one_by_one, "an array": np.array, "a tuple": tuple}
"""Other forms in which a user may give a list."""


class Workshop:
    """A separate folder for every case, and models that are made once."""

    def __init__(self, root: Path, directory: Callable[[str], Path], models: dict[str, Any], texts: list[str]) -> None:
        self.root, self.directory, self._models, self.texts = root, directory, models, texts
        self.counts = Unigrams(np.arange(1, D_VOCAB + 1), "counts")

    def file(self, name: str, data: bytes | str = b"") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    def broken_link(self) -> Path:
        (self.root / "link").symlink_to(self.root / "gone")
        return self.root / "link"

    def files(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")}

    def corpus(self) -> Path:
        return self.file("corpus.txt", "\n".join(self.texts))

    def table(self) -> pd.DataFrame:
        """Sentences in a table, where a list is expected."""
        return pd.DataFrame({"w1": self.texts[:3], "w2": self.texts[:3]})

    def model(self, kind: str) -> Any:
        """A loaded model, which must not be changed."""
        if kind not in self._models:
            self._models[kind] = interp.load(self.directory(kind))
        return self._models[kind]

    def broken(self, kind: str, value: float) -> Any:
        """A copy of a model with one weight of block 0 that is not finite."""
        model = copy.deepcopy(self.model(kind))
        with torch.no_grad():
            model.blocks[0].attn.W_Q[0, 0, 0] = value
        return model

    def more_tokens(self) -> Any:
        """A model whose tokenizer has one token more than the model has embeddings."""
        model = copy.deepcopy(self.model("gpt2"))
        model.tokenizer.add_tokens(["extra"])
        return model

    def toy(self, **options: Any) -> Any:
        return toy(self.model("gpt2").tokenizer, **options)

    def bare_encoder(self) -> Any:
        return toy(encoder=True)

    def fit(self) -> encoding.regression.Fit:
        if "fit" not in self._models:
            self._models["fit"] = encoding.fit(self.model("gpt2"), self.texts, progress=False)
        return self._models["fit"]

    def copied(self, kind: str) -> Path:
        return shutil.copytree(self.directory(kind), self.root / kind)

    def config(self, kind: str = "gpt2", **changes: Any) -> Path:
        """A model directory with changes in config.json."""
        path = self.copied(kind)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | changes))
        return path

    def with_file(self, name: str, data: bytes | str, kind: str = "gpt2") -> Path:
        """A model directory with one file replaced."""
        path = self.copied(kind)
        (path / name).write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    def other_config(self, kind: str) -> Path:
        return self.with_file("config.json", (self.directory(kind) / "config.json").read_bytes())

    def truncated(self, kind: str) -> Path:
        whole = (self.directory(kind) / "model.safetensors").read_bytes()
        return self.with_file("model.safetensors", whole[: len(whole) // 2], kind)

    def infinite(self) -> Path:
        path = self.copied("gpt2")
        weights = load_file(path / "model.safetensors")
        weights["transformer.h.0.ln_1.bias"][0] = torch.inf
        save_file(weights, path / "model.safetensors", {"format": "pt"})
        return path

    def sharded(self, second: str | None = "model-00002-of-00002.safetensors") -> Path:
        """A model directory with the first of two shards and an index that names the second (None: cut off)."""
        path = self.copied("gpt2")
        weights = load_file(path / "model.safetensors")
        first = dict(list(weights.items())[:5])
        save_file(first, path / "model-00001-of-00002.safetensors", {"format": "pt"})
        (path / "model.safetensors").unlink()
        where = {name: "model-00001-of-00002.safetensors" if name in first else second for name in weights}
        index = "{" if second is None else json.dumps({"metadata": {}, "weight_map": where})
        (path / "model.safetensors.index.json").write_text(index)
        return path

    def pickled(self) -> Path:
        path = self.copied("gpt2")
        (path / "model.safetensors").unlink()
        (path / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
        return path

    def remote_code(self, model_type: str) -> Path:
        """A model directory that asks to run its own code, which would leave a file named `ran`."""
        path = self.config(
            model_type=model_type, trust_remote_code=True,
            auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
        )  # fmt: skip
        settings = json.loads((path / "tokenizer_config.json").read_text())
        settings |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Slow", "evil.Fast"]}}
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
        names = "\n".join(f"class {name}: pass" for name in ("Config", "Model", "Slow", "Fast"))
        (path / "evil.py").write_text(f"open({str(self.root / 'ran')!r}, 'w')\n{names}\n")
        return path

    def run(self) -> Path:
        """A valid run of `interp frequency`, made once, which must not be changed."""
        made = self.directory("gpt2").parent / "sound-run"
        if not made.exists():
            text = self.file("sound.txt", "w1 w2 w3 w1 w2\n" * 50)
            given = {"--model": self.directory("gpt2"), "--corpus": text, "--out": made}
            assert run_command(["frequency", *(str(part) for pair in given.items() for part in pair)]) == 0
            text.unlink()
        return made

    def result(self, name: str = "", data: bytes | str | None = None) -> Path:
        """A copy of a valid run with one file of `frequency` replaced, or removed if None."""
        path = shutil.copytree(self.run(), self.root / "run")
        if name and data is None:
            (path / "frequency" / name).unlink()
        elif name:
            (path / "frequency" / name).write_bytes(data.encode() if isinstance(data, str) else data or b"")
        return path

    def part(self, command: str) -> Path:
        """A directory with what one `--shard` of `interp frequency` leaves behind."""
        self.file("part/.frequency/command.json", command)
        return self.root / "part"


Case = tuple[type[Exception], tuple[object, ...], Callable[[Workshop], object]]
"""The expected exception, the values that its message names, and a call that raises it."""


def check_refused(case: Case, workshop: Workshop) -> None:
    """Check that interp or its tools raise a documented error, which names these values.

    Some of the input is endless; that the test ends shows that it is not all read.
    """
    expected, values, attempt = case
    with pytest.raises(expected, match=naming(*values)) as caught:
        attempt(workshop)
    frames = [frame for frame in traceback.extract_tb(caught.tb) if "contextlib" not in frame.filename]
    assert frames[-1].filename.startswith(_HOMES), f"raised in {frames[-1].filename}: {caught.value!r}"
    assert not (workshop.root / "ran").exists(), "code of a model directory ran"


Command = tuple[str, Callable[[Workshop], list[str]]]
"""Some words of the expected error, and a command line."""


def check_command_refused(case: Command, workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    """Check for exit code 2 and one line, with nothing written."""
    message, arguments = case
    given, before = arguments(workshop), workshop.files()
    capsys.readouterr()
    with chdir(workshop.root):
        code = run_command(given)
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("interp: note")]
    assert code == 2, captured.err
    assert captured.out == ""
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("interp: error: ")
    assert message in " ".join(captured.err.split()), "in the line, or in a note before it"
    assert workshop.files() == before, "something was written"
