"""The lists of docs/models.md: no answer is wrong, and every question that is listed as answered is answered.

Each architecture is also the model that transformers gives a user, in whatever type it is stored.
"""

import itertools
import re
from importlib.metadata import version

import architectures
import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING

import interp
from interp.models.loading.pretrained import MASKED
from interp.models.sites import view

pytestmark = pytest.mark.e2e
STORED = [torch.bfloat16, torch.float16]
TOKENS = torch.randint(7, 67, (2, 20), generator=torch.Generator().manual_seed(0))

NEED_4 = ("roberta", "cohere", "cohere2", "hunyuan_v1_dense")
NOT_IN_OLDER_TRANSFORMERS = ("internlm3",)


def listed():
    page = architectures.PAGE.read_text(encoding="utf-8")
    questions = [question.replace("_", " ") for question in architectures.QUESTIONS]
    complete = re.search(rf"^{re.escape(architectures.COMPLETE)}(.*)\.$", page, re.MULTILINE)[1].split(", ")
    refused = re.findall(r"^- \*\*(.+?)\*\* of (.+?): ", page, re.MULTILINE)
    kinds = [*complete, *(kind for _, names in refused for kind in names.split(", "))]
    refusals = {(question, kind) for question, names in refused for kind in names.split(", ")}
    return {kind: [(question, kind) not in refusals for question in questions] for kind in kinds}


def skip_if_too_new(kind):
    if kind in NOT_IN_OLDER_TRANSFORMERS and kind not in CONFIG_MAPPING:
        pytest.skip(f"transformers {version('transformers')} has no {kind}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", architectures.KINDS)
@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # older transformers, importing gpt_bigcode
def test_answers_and_refusals(kind):
    skip_if_too_new(kind)
    found = [why is None for why in architectures.asked(kind).values()]
    if kind in NEED_4 and version("transformer-lens") < "4":
        assert not any(found)
    else:
        assert found == listed()[kind]


def from_transformers(kind, directory, dtype):
    """The model as a user loads it."""
    auto = transformers.AutoModelForMaskedLM if kind in MASKED else transformers.AutoModelForCausalLM
    return auto.from_pretrained(directory, dtype=dtype).eval()


def assert_same_buffers(bridge, expected):
    wrapped = view(bridge).wrapped
    named = {
        name.replace("._original_component", ""): one for name, one in wrapped.named_buffers(remove_duplicate=False)
    }
    for name, buffer in expected.named_buffers():
        torch.testing.assert_close(named[name], buffer, atol=0, rtol=0, msg=name)


@pytest.mark.quick("gemma3_text", "xglm", "gptj")
@pytest.mark.parametrize(("kind", "stored"), [*zip(architectures.KINDS, itertools.cycle(STORED), strict=False)])
@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
def test_stored_in_another_type(kind, stored, tmp_path):
    """Buffers made from a number, such as Gemma's embed_scale, have the type of the model and not that of the files."""
    skip_if_too_new(kind)
    if kind in NEED_4 and version("transformer-lens") < "4":
        pytest.skip(f"the bridge of {kind} needs TransformerLens 4")
    architectures.toy(kind, tmp_path, stored)
    plain, ours = from_transformers(kind, tmp_path, torch.float32), interp.load(tmp_path, backend="bridge")
    with torch.no_grad():
        found, expected = (model(TOKENS) for model in (ours, plain))
    torch.testing.assert_close(found.log_softmax(-1), expected.logits.log_softmax(-1), atol=1e-4, rtol=0)
    assert_same_buffers(ours, plain)
    for dtype in STORED:
        narrow = interp.load(tmp_path, dtype=dtype, backend="bridge")
        assert_same_buffers(narrow, from_transformers(kind, tmp_path, dtype))


@pytest.mark.slow
def test_enough_are_listed():
    decoders = [kind for kind in listed() if kind not in ("bert", "roberta")]
    assert len(decoders) >= 40
