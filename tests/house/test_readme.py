"""The examples of the README and of the cheat sheet run one after the other, every command in the docs exists as it is
shown, and the gallery is complete."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from toys import ROOT

from interp import plots
from interp.cli import app, main

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.e2e
def test_examples_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) == 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert "They came to the" in capsys.readouterr().out
    assert len(names["effect"].kl) == 3
    assert names["study"].ablation["attention_before"].notna().all()
    assert names["fit"].regression.set_index("target")["adj_r2"]["-log alpha"] > 0.9
    assert set(names["found"].probes["method"]) == {"l0", "dense"}


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory in which runs may be written."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.usefixtures("away")
def test_all_of_interp_runs():
    page = (ROOT / "docs/cheat-sheet.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    for language, block in blocks:
        if language == "python":
            exec(compile(block, "cheat-sheet.md", "exec"), names)
            continue
        for command in block.splitlines():
            assert main(shlex.split(command)[1:]) == 0, command
    assert Path("runs/mine/index.html").is_file()
    assert Path("runs/compared/index.html").is_file()


def test_the_gallery_has_every_figure_of_a_result():
    page = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"`plots\.(\w+)\(", page))
    assert shown == {path.stem for path in (ROOT / "docs/gallery").glob("*.png")}
    not_drawn_of_tiny_gpt2 = {"massive_writers", "outlier_parts", "pruned_texts"}
    views = {"TextMeasure", "attention_view", "probe_view", "show_images", "token_views"}
    assert shown == set(plots.__all__) - views - not_drawn_of_tiny_gpt2


def test_every_command_that_is_shown_exists():
    commands = typer.main.get_command(app).commands
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text(encoding="utf-8").replace("\\\n", "")
        shown = [line.split("#")[0].split() for line in text.splitlines() if re.match(r"\$? ?interp [a-z]", line)]
        shown = [line for line in shown if "previous_token" not in line]  # the plug-in: tests/e2e/test_plugins.py
        for _, name, *words in ([word for word in line if word != "$"] for line in shown):
            assert name in commands, f"{page.name}: interp {name}"
            flags = {flag for option in commands[name].params for flag in (*option.opts, *option.secondary_opts)}
            assert {word for word in words if word.startswith("--")} <= flags, f"{page.name}: interp {name}"


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).is_file(), target
