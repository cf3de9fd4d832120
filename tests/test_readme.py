"""The README's Python examples run as they stand, one after the other."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_examples_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 7
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert "The valley" in capsys.readouterr().out
    assert len(names["effect"].kl) == 3
    assert names["first"].state["n"] == names["last"].state["n"] > 20_000
