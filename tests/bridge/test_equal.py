"""A bridge gives the same answers as a hooked model.

Where TransformerLens has no hooked models (4 and later), `INTERP_HOOKED_PYTHON` names a Python that has them.
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from bridge.answers import ANSWERS, OF_WORDS, WITHOUT_WORDS, answer, assert_same, main, saved
from toys import HF_MODELS, ROOT

import interp
from interp.models.identity import weight_hash

HAS_HOOKED = int(version("transformer-lens").split(".")[0]) < 4
PYTHON = sys.executable if HAS_HOOKED else os.environ.get("INTERP_HOOKED_PYTHON")
pytestmark = pytest.mark.e2e
EVERY_TIME = ("gpt2", "llama", "bert")
RTOL = {"attention_study": 1e-4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hooked")


@pytest.fixture(scope="module", params=[
    pytest.param(kind, marks=[] if kind in EVERY_TIME else [pytest.mark.slow]) for kind in HF_MODELS
])  # fmt: skip
def both(request, folder):
    """The kind, the answers of the hooked model, and a bridge with the same weights."""
    kind = request.param
    if HAS_HOOKED:
        main(folder, [kind])
    elif PYTHON is None:
        pytest.skip("no hooked models in this TransformerLens; set INTERP_HOOKED_PYTHON to a Python that has them")
    else:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["PYTHONPATH"] = str(ROOT / "tests" / "support")
        answers = Path(__file__).with_name("answers.py")
        subprocess.run([PYTHON, str(answers), str(folder), kind], env=environment, check=True, capture_output=True)
    return kind, saved(folder, kind), interp.load(folder / kind, backend="bridge")


@pytest.mark.parametrize("question", ANSWERS)
def test_answers(both, question):
    kind, expected, model = both
    if question in OF_WORDS and kind in WITHOUT_WORDS:
        pytest.skip(f"the toy of {kind} has no words")
    assert type(model).__name__ == "TransformerBridge"
    assert_same(answer(question, model), expected[question], RTOL.get(question, 1e-5))


def test_one_hash_for_the_same_weights(both, folder):
    kind, _, model = both
    hooked = (folder / kind / "weight_hash").read_text(encoding="utf-8")
    assert weight_hash(model) == hooked
    model.ln_final.weight.data[0] += 1
    assert weight_hash(model) != hooked
    model.ln_final.weight.data[0] -= 1
