"""The explorer in a browser."""

import json
from typing import Any
from urllib.parse import urlsplit

from browser import Browser
from explored import running

from interp.pages.explorer.attention import attention
from interp.pages.explorer.grammar import grammar
from interp.pages.explorer.predictions import frequency, probability
from interp.pages.explorer.subject import subject

PANELS = ("attention", "frequency", "probability", "grammar")
WAIT = """(async () => {
  for (let i = 0; i < 150; i++) {
    await new Promise(done => setTimeout(done, 100));
    if (READY) return;
  }
  throw new Error('not in time: ' + document.querySelector('section:not([hidden])')?.innerText);
})()"""


def shows(browser: Browser, text: str) -> None:
    """Wait until the panel in front shows a text."""
    shown = "document.querySelector('section:not([hidden]) .shown')?.innerText"
    browser.run(WAIT.replace("READY", f"{shown}?.includes({json.dumps(text)})"))


def typed(browser: Browser, selector: str, text: str) -> None:
    """Type a text in place of what a control holds."""
    browser.click(selector)
    browser.run(f"document.querySelector({selector!r}).select()")
    browser.call("Input.insertText", text=text)
    browser.press("Enter")


def changed(browser: Browser, control: str, before: object) -> Any:
    """The value of a control, once it differs."""
    value = f"dash_component_api.getLayout('{control}').props.value"
    return browser.run(f"{WAIT.replace('READY', f'{value} !== {json.dumps(before)}')}.then(() => {value})")


def test_a_click_through_the_panels(browser, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = subject("tiny-gpt2", {})
    with running(found) as address:
        browser.resize(1400)
        browser.dark(False)
        browser.call("Page.navigate", url=address)
        shows(browser, attention(found, "The boy who lived by the river hurt himself").notes[1])

        text = "The girl who saw the king hurt herself."
        typed(browser, "#attention-text", text)
        typed(browser, "#attention-layer", "2")
        shows(browser, attention(found, text, layer=2).notes[1])
        browser.click("#attention-outliers")
        outliers = found.prepared.outliers.query("state == 2")["dim"].tolist()
        shows(browser, attention(found, text, layer=2, removed=outliers).notes[1])
        browser.click("#attention-where label:nth-of-type(3)")
        shows(browser, attention(found, text, layer=2, removed=outliers, where="residual").notes[0])

        removal: dict[str, Any] = {"layer": 2, "removed": outliers, "where": "residual"}
        browser.click("#attention-figure-heads .nsewdrag")
        head = changed(browser, "attention-head", 0)
        shows(browser, attention(found, text, head=head, **removal).notes[0])
        browser.click("#attention-figure-pattern .nsewdrag")
        pair = {name: changed(browser, f"attention-{name}", None) for name in ("query", "key")}
        shows(browser, attention(found, text, head=head, **removal, **pair).notes[0])
        before = ", ".join(map(str, outliers))
        browser.click("#attention-figure-dimensions .point path")
        after = changed(browser, "attention-removed", before)
        assert len(set(before.split(", ")) ^ set(after.split(", "))) == 1
        typed(browser, "#attention-text", "word " * 2000)
        shows(browser, "at most 128")

        browser.run("document.getElementById('attention-tab').focus()")
        browser.press("ArrowRight")
        shows(browser, frequency(found, "The boy walked to the", scale=0).notes[1])
        browser.press("ArrowRight")
        typed(browser, "#probability-token", "␣himself")
        typed(browser, "#probability-ratio", "5")
        shows(browser, probability(found, "␣himself", ratio=5).notes[0])
        browser.press("End")
        browser.click("#grammar-tab")
        typed(browser, "#grammar-one", "<script>alert(1)</script> שלום")
        typed(browser, "#grammar-other", text)
        shows(browser, grammar(found, "<script>alert(1)</script> שלום", text).notes[0])
        saved = browser.downloaded("#grammar-save", tmp_path, "tiny-gpt2-grammar.html")
        assert "sentence_scores(model, sentences)" in saved
        drawn = browser.run("document.querySelectorAll('section:not([hidden]) .main-svg').length")
        assert drawn >= 1

        for width, dark in ((400, True), (1400, False)):
            browser.resize(width)
            browser.dark(dark)
            for panel in PANELS:
                browser.click(f"#{panel}-tab")
                browser.run("new Promise(done => setTimeout(done, 300))")
                wide = browser.run("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{panel} is wider than {width} pixels"
        assert {urlsplit(one).netloc for one in browser.requests} == {urlsplit(address).netloc}
        assert all(urlsplit(one).path.startswith(urlsplit(address).path) for one in browser.requests)
        browser.open(tmp_path / "tiny-gpt2-grammar.html")
        assert browser.run("document.querySelectorAll('.main-svg').length") > 0
        browser.run("document.querySelectorAll('details').forEach(folded => folded.open = true)")
        assert "<script>alert(1)</script>" in browser.run("document.body.innerText")
        assert not browser.problems
