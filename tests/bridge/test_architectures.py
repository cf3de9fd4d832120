"""The table of docs/models.md: no answer is wrong, and every question shown as answered is answered."""

import re
from importlib.metadata import version

import architectures
import pytest
from transformers import CONFIG_MAPPING

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NEED_4 = ("roberta", "cohere", "cohere2", "hunyuan_v1_dense")
NOT_IN_OLDER_TRANSFORMERS = ("internlm3",)


def listed():
    rows = re.findall(r"^\| ([\w-]+) \| (.*) \|$", architectures.PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {kind: [cell == "✓" for cell in cells.split(" | ")] for kind, cells in rows}


@pytest.mark.parametrize("kind", architectures.KINDS)
@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # older transformers, importing gpt_bigcode
def test_answers_and_refusals(kind):
    if kind in NOT_IN_OLDER_TRANSFORMERS and kind not in CONFIG_MAPPING:
        pytest.skip(f"transformers {version('transformers')} has no {kind}")
    found = [why is None for why in architectures.asked(kind).values()]
    if kind in NEED_4 and version("transformer-lens") < "4":
        assert not any(found)
    else:
        assert found == listed()[kind]


def test_enough_are_listed():
    decoders = [kind for kind in listed() if kind not in ("bert", "roberta")]
    assert len(decoders) >= 40
