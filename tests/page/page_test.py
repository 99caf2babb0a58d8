#!/usr/bin/env python3
"""Drives the page of `quire serve` in a real browser, as a reader would.

    page_test.py [--quire PROGRAM | --url http://127.0.0.1:PORT] [--screenshots DIR]

With --quire it serves the house model with that program. Without either it starts mock_server.py, and checks some more: what only a server that fails on purpose can show. Exits with 0 when every
check holds, 1 when one does not, 77 when there is no Chromium or chromedriver.
"""
import argparse
import json
import re
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import mock_server
from webdriver import Browser, find_programs

LONG = "Tell me a long story about a fox, a stream and all the stars."
ANSWER = "document.querySelector('.turn.assistant:last-of-type .text')"


class Page:
    """The page under test, in the words of the checks."""

    def __init__(self, browser, url):
        self.browser, self.url = browser, url
        self.js = browser.js

    def load(self, hash=""):
        """As a tab that is opened anew: no conversation is open in it."""
        self.js("try { sessionStorage.removeItem('quire.open') } catch { /* not yet on the page */ }")
        self.browser.open("about:blank")
        self.browser.open(self.url + "/" + hash)
        self.until("return document.getElementById('model').textContent !== ''", "the model's name appears")

    def reload(self):
        self.browser.open("about:blank")
        self.browser.open(self.url + "/")
        self.until("return document.getElementById('model').textContent !== ''", "the model's name appears")

    def texts(self, role):
        return self.js("return [...document.querySelectorAll(`.turn.${arguments[0]} .text`)].map((e) => e.textContent)", role)

    def give_file(self, selector, name, text):
        self.js("""const [selector, name, text] = arguments;
                   const files = new DataTransfer();
                   files.items.add(new File([typeof text === 'string' ? text : new Uint8Array(text)], name));
                   const field = document.querySelector(selector);
                   field.files = files.files;
                   field.dispatchEvent(new Event('change', {bubbles: true}));""", selector, name, text)

    def until(self, script, what, seconds=12):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = self.js(script)
            if value:
                return value
            time.sleep(0.03)
        raise AssertionError(f"waited {seconds} s in vain: {what}")

    def text(self, selector):
        return self.js("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def focused(self):
        return self.js("const e = document.activeElement; return e.id || e.className || e.tagName")

    def ask(self, text):
        self.browser.fill("#message", text)
        self.browser.press("Enter")

    def turns(self):
        return self.js("return document.querySelectorAll('.turn.assistant').length")

    def unfold_row(self, unfolded=True):
        """The newest request of the timeline, whatever a check before left it as."""
        if self.js("return document.querySelector('#timeline li .row-head').ariaExpanded === 'true'") != unfolded:
            self.browser.click("#timeline li .row-head")

    def wait_for_answer(self, seconds=25):
        self.until(f"return !document.querySelector('.writing') && {ANSWER}?.textContent", "the answer ends", seconds)

    def set_options(self, **options):
        """As a person would who fills the fields; `reset-options` empties them again."""
        self.js("""document.getElementById('options').open = true;
                   for (const [name, value] of Object.entries(arguments[0])) {
                     const field = document.querySelector(`[data-option=${name}]`);
                     field.value = value;
                     field.dispatchEvent(new Event('input', {bubbles: true}));
                   }
                   document.getElementById('options').open = false;""", options)

    def wander(self):
        """Options that make any model go on and on, so that there is something to stop."""
        context = int(re.search(r", ([\d,]+) tokens", self.text("#model"))[1].replace(",", ""))
        self.set_options(temperature=2, max_tokens=min(1500, context >> 1))

    def map_pixels(self):
        return self.js("return [...document.querySelectorAll('.map')].map((canvas) => canvas.toDataURL()).join()")

    def overflow(self):
        return self.js("return document.documentElement.scrollWidth - document.documentElement.clientWidth")


CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


@check
def the_page_names_the_model_and_shows_a_title_page(page):
    page.browser.size(1280, 900)
    page.browser.prefer(color_scheme="light")
    page.load()
    assert page.text("#title-model") == page.text("#model").split(",")[0]
    assert page.js("return document.querySelectorAll('#suggestions button').length") == 3
    return page.text("#model")


@check
def events_are_read_whole_wherever_the_bytes_are_cut(page):
    seen = page.browser.js_async("""const done = arguments[0];
        import('./sse.js').then(({SseParser}) => {
          const text = 'data: {"a":"é🦊"}\\r\\n\\r\\n: comment\\ndata: one\\ndata: two\\n\\nid: 7\\rdata:three\\r\\rdata: [DONE]\\n\\n';
          const bytes = new TextEncoder().encode(text);
          const results = new Set();
          for (let i = 0; i <= bytes.length; ++i) {
            for (let j = i; j <= bytes.length; ++j) {
              const parser = new SseParser();
              const pieces = [bytes.slice(0, i), bytes.slice(i, j), bytes.slice(j)];
              results.add(JSON.stringify([...pieces.flatMap((piece) => parser.feed(piece)), ...parser.end()]));
            }
          }
          done([...results]);
        }, (error) => done([String(error)]));""")
    assert [json.loads(result) for result in seen] == [['{"a":"é🦊"}', "one\ntwo", "three", "[DONE]"]], seen
    return "every pair of cuts gives the same four events"


MARKDOWN = """One <b>bold</b>
line of *it*, **more** and `code`.

# A heading
```html
<img src=x onerror=alert(1)>

# kept
```
- an item
  - inside
    ```
    deep
    ```
- [x] done

3. three
4. four

> quoted
> - too

| name | size |
|:-----|-----:|
| a | 1 |
| `b|` | 2 |

[one](https://example.com/a_(b)) [two](javascript:alert(1)) <https://example.com/> https://example.com/x_y, 2 * 3 * 4 snake_case_name ~~gone~~
***
It is $5 and $6.

```
open"""


@check
def markdown_becomes_elements_and_markup_stays_text(page):
    seen = page.browser.js_async("""const [text, done] = arguments;
        import('./answer_text.js').then(({TextView}) => {
          const shown = (...pieces) => {
            const element = document.createElement('div');
            const view = new TextView(element);
            for (const piece of pieces) view.show(piece);
            return element;
          };
          const whole = shown(text);
          const grown = shown(...[...text].map((_, i) => text.slice(0, i + 1)));
          done({same: whole.innerHTML === grown.innerHTML, kinds: [...whole.querySelectorAll('[data-kind]')].map((e) => e.dataset.kind),
                foreign: grown.querySelectorAll('b, img, script').length, links: [...grown.querySelectorAll('a')].map((a) => [a.href, a.rel]),
                tags: ['em', 'strong', 'del', 'h4', 'blockquote ul', 'ul ul pre', 'li.task', 'td.right', 'th'].map((tag) => grown.querySelectorAll(tag).length),
                start: grown.querySelector('ol').start, text: grown.textContent});
        }, (error) => done({error: String(error)}));""", MARKDOWN)
    assert seen.get("same"), seen
    assert seen["kinds"] == ["paragraph", "heading", "code", "list", "list", "quote", "table", "paragraph", "rule", "paragraph", "code"], seen["kinds"]
    assert seen["foreign"] == 0 and seen["tags"] == [1, 1, 1, 1, 1, 1, 1, 2, 2], seen
    assert [href for href, _ in seen["links"]] == ["https://example.com/a_(b)", "https://example.com/", "https://example.com/x_y"], seen["links"]
    assert all("noopener" in rel for _, rel in seen["links"]) and seen["start"] == 3
    for kept in ("<b>bold</b>", "<img src=x onerror=alert(1)>", "[two](javascript:alert(1))", "2 * 3 * 4", "snake_case_name", "$5 and $6"):
        assert kept in seen["text"], kept
    return f"{len(seen['kinds'])} blocks, no foreign element, the same whole and letter by letter"


@check
def a_long_hostile_answer_stays_harmless_and_is_never_built_again(page):
    seen = page.browser.js_async("""const done = arguments[0];
        import('./answer_text.js').then(async ({TextView}) => {
          const results = {};
          const kinds = {scripts: [1e6, '<script>window.hurt = 1</script>\\n\\n<img src=x onerror="window.hurt = 1">\\n\\n'], code: [1e6, 'let x = "<b>";\\n', '```\\n'],
                         letters: [1e6, 'x'], brackets: [1e5, '['], stars: [1e5, '*a **b _c '], quotes: [1e5, '> > > '], ticks: [1e5, '` `` '],
                         rows: [1e5, '| a | b |\\n', '|a|b|\\n|-|-|\\n'], links: [1e5, '[a](javascript:window.hurt=1) '], blanks: [1e5, ' ', '# x']};
          for (const [name, [length, unit, head = '']] of Object.entries(kinds)) {
            const text = head + unit.repeat(Math.ceil(length / unit.length)) + 'y';
            const element = document.createElement('div');
            element.className = 'text';
            document.getElementById('turns').append(element);
            const view = new TextView(element);
            let longest = 0;
            let marked = null;
            for (let end = 10000; end < text.length + 10000; end += 10000) {
              const began = performance.now();
              view.show(text.slice(0, end));
              void element.offsetHeight;
              longest = Math.max(longest, performance.now() - began);
              if (end === 40000) marked = element.querySelector('.piece') ?? element.querySelector('[data-kind]');
              if (end % 100000 === 0) await new Promise(requestAnimationFrame);
            }
            const said = name === 'code' ? element.querySelector('code').textContent : element.textContent;
            results[name] = {ms: Math.round(longest), kept: said.length, of: text.length, stands: element.contains(marked)};
            element.remove();
          }
          done({results, bad: document.querySelectorAll('#turns script, #turns img').length, hurt: window.hurt ?? 0});
        }, (error) => done({error: String(error.stack)}));""")
    assert "results" in seen and seen["bad"] == 0 and seen["hurt"] == 0, seen
    for name, result in seen["results"].items():
        assert result["stands"], f"{name}: what stood was built again"
        assert name in ("quotes", "rows", "blanks", "ticks") or result["kept"] > result["of"] * 0.7, (name, result)
    return "longest pause while 10 kB more came, ms: " + ", ".join(f"{name} {result['ms']}" for name, result in seen["results"].items())


@check
def a_message_is_answered_as_a_growing_text(page):
    page.until("return document.querySelector('.map')?.width > 50", "a map is drawn")
    page.map_before = page.map_pixels()
    page.js("""window.lengths = [];
               new MutationObserver(() => {
                 const length = document.querySelector('.turn.assistant .text')?.textContent.length ?? 0;
                 if (length > (lengths.at(-1)?.[0] ?? 0)) lengths.push([length, performance.now()]);
               }).observe(document.getElementById('turns'), {childList: true, subtree: true, characterData: true});""")
    page.set_options(max_tokens=150)  # of a longer answer the first passes are not told any more, and checks below read them
    page.ask("Tell me a short story about a fox.")
    page.until("return document.querySelector('.turn.user .text')?.textContent.includes('fox')", "the message stands in the conversation")
    page.wait_for_answer()
    page.js("document.getElementById('reset-options').click()")
    lengths = page.js("return lengths")
    assert len(lengths) >= 4, f"the text grew only {len(lengths)} times"
    assert lengths[-1][1] - lengths[0][1] > 20, "all of it came at once"
    return f"{len(lengths)} pictures of the text, {lengths[0][0]} to {lengths[-1][0]} characters in {lengths[-1][1] - lengths[0][1]:.0f} ms"


@check
def figures_stand_under_the_answer(page):
    figures = page.text(".turn.assistant .report-figures")
    for words in ("to the first token", "between tokens", "tokens/s", "prompt tokens cached", "KV page"):
        assert words in figures, f"no '{words}' in: {figures}"
    assert re.search(r"\d+ of \d+ prompt tokens cached", figures), figures
    page.js("document.querySelectorAll('.report details').forEach((fold) => { fold.open = true; })")
    return figures


@check
def a_screen_reader_hears_the_answer_once_it_is_complete(page):
    heard = page.text("#announce")
    assert heard and heard.split()[:3] == page.js(f"return {ANSWER}.textContent").split()[:3], heard
    assert page.js("return document.querySelectorAll('#log [aria-live]').length") == 0, "the streamed text itself is announced"
    return f"{len(heard)} characters, announced once"


@check
def the_page_map_changes_with_a_request(page):
    page.until("return /^[1-9]/.test(document.getElementById('events-aside').textContent)", "page events are counted")
    deadline = time.monotonic() + 5
    while page.map_pixels() == page.map_before:
        assert time.monotonic() < deadline, "the map still looks as it did before the request"
        time.sleep(0.1)
    held = page.js("return document.querySelector('.group .legend').textContent.trim().replace(/\\s+/g, ' ')")
    assert page.js("return document.querySelectorAll('#events li').length") > 0, "no event is listed"
    return held


@check
def the_timeline_has_a_row_for_the_request(page):
    page.until("return document.querySelectorAll('#timeline li').length > 0", "a row is there")
    assert page.js("const e = document.querySelector('.row-head'); return e.scrollWidth <= e.clientWidth"), "its name does not fit"
    page.unfold_row()
    words = page.text("#timeline li .row-more")
    assert "prompt token" in words and "came from the cache" in words, words
    page.browser.hover("#timeline li canvas", 20)
    told = page.text("#timeline-readout")
    assert "At that moment" in told, told
    page.unfold_row(False)
    return f"{page.js('return document.querySelector(`#timeline li`).dataset.request')}: {told}"


@check
def the_steps_of_a_request_unfold(page):
    page.unfold_row()
    page.browser.click("#timeline li details summary")
    page.until("return document.querySelectorAll('#timeline li .steps tbody tr').length > 2", "its passes are listed")
    rows = page.js("return [...document.querySelectorAll('#timeline li .steps tbody tr:not(.left-out)')].map((row) => [row.className, "
                   "...[...row.cells].map((cell) => cell.textContent)])")
    assert rows[0][0] == "prefill" and rows[-1][0] == "decode", rows
    entries = [[int(part.replace(",", "")) for part in row[3].split(" → ")] for row in rows]
    for row, (before, after) in zip(rows, entries):
        assert after - before == int(row[2].split()[0].replace(",", "")), row
    assert all("“" in row[5] for row in rows if row[0] == "decode"), "a token was drawn by each pass of decode"
    assert page.overflow() <= 0, "the table makes the page wider"
    page.unfold_row(False)
    return f"{len(rows)} passes, {entries[0][0]} → {entries[-1][1]} entries"


HEAT = "#timeline li .heat"


@check
def where_a_head_looks_unfolds(page):
    page.unfold_row()
    assert page.js("return performance.getEntriesByType('resource').filter(({name}) => name.includes('/attention?')).length") == 0, "asked before it was opened"
    page.browser.click("#timeline li details.attention summary")
    page.until(f"return document.querySelector('{HEAT}')?.offsetParent && true", "a map is drawn")
    drawn = "const c = document.querySelector(arguments[0]); return new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size"
    colours = page.js(drawn, HEAT)
    assert colours > 5, f"only {colours} colours: the map is empty"
    first = page.js(f"return document.querySelector('{HEAT}').toDataURL()")
    page.js("document.querySelector('#timeline li .head-fields label:last-child input').focus()")
    page.browser.press("ArrowUp")
    page.until(f"return document.querySelector('{HEAT}').getAttribute('aria-label').includes('head 1,')", "another head is shown")
    assert page.js(f"return document.querySelector('{HEAT}').toDataURL()") != first, "another head looks the same"
    assert "reads KV head" in page.text("#timeline li .about-head")
    page.browser.press("Tab")
    page.browser.press("ArrowDown", "ArrowDown", "End", "ArrowLeft")
    told = page.text("#timeline li .heat-map .readout")
    assert re.match(r"Token \d[\d,–]*, “.+”, looks at: “.*” [\d.]+\u2009%", told) and "a key" in told, told
    assert page.js("return document.querySelector('#timeline li .heat-map .readout').ariaLive") == "polite"
    assert page.overflow() <= 0, "the map makes the page wider"
    page.unfold_row(False)
    return f"{colours} colours; {told}"


@check
def a_head_is_looked_at_again_while_the_answer_grows(page):
    if not page.server:
        return "not checked: only the mock's answers are sure to last"
    page.wander()
    page.ask(LONG)
    page.until("return document.querySelectorAll('#timeline li').length > 1 && /answering/.test(document.querySelector('#timeline li .row-head').textContent)",
               "it is answered")
    page.js("performance.clearResourceTimings()")
    page.unfold_row()
    page.browser.click("#timeline li details.attention summary")
    page.until(f"return document.querySelector('{HEAT}')?.offsetParent && true", "a map is drawn")
    first = page.js(f"return document.querySelector('{HEAT}').ariaLabel")
    page.until(f"return document.querySelector('{HEAT}').ariaLabel !== arguments[0]".replace("arguments[0]", json.dumps(first)), "the map grows")
    asked = page.js("return performance.getEntriesByType('resource').filter(({name}) => name.includes('/attention?')).map(({startTime}) => startTime)")
    assert all(after - before > 1950 for before, after in zip(asked, asked[1:])), asked
    page.unfold_row(False)
    page.js("document.getElementById('stop').click(); document.getElementById('reset-options').click()")
    page.until("return !document.querySelector('.writing')", "it stops", 5)
    page.browser.click("#new-conversation")
    page.ask("Tell me a short story about a fox.")
    page.wait_for_answer()
    return f"{len(asked)} looks, from '{first}' on"


@check
def the_stop_button_ends_an_answer(page):
    page.wander()
    # Any answer may end at once: then it is asked again. Seen and clicked by one script: it may be over before a second one runs.
    for _ in range(5):
        turns = page.turns()
        page.ask(LONG)
        page.until(f"return document.querySelectorAll('.turn.assistant').length > {turns}", "the turn begins")
        seen = page.until("const stop = document.getElementById('stop'); if (!document.querySelector('.writing')) return 'over'; if (stop.hidden || "
                          + ANSWER + ".textContent.length < 4) return false; stop.click(); return 'stopped'", "its text begins or it ends")
        if seen == "stopped":
            break
    page.until("return !document.querySelector('.writing')", "it stops", 3)
    page.until("return document.querySelector('.turn.assistant:last-of-type .note')?.textContent.startsWith('Stopped')", "it says so", 3)
    length = page.js(f"return {ANSWER}.textContent.length")
    time.sleep(0.4)
    assert page.js(f"return {ANSWER}.textContent.length") == length, "text came after the stop"
    page.until("return /^0 running/.test(document.getElementById('request-counts').textContent)", "the engine is idle again", 4)
    assert page.js("return !document.getElementById('send').hidden && document.getElementById('stop').hidden")
    return f"stopped after {length} characters"


@check
def the_next_answer_finds_the_conversation_in_the_cache(page):
    page.browser.click("#reset-options") if page.js("return document.getElementById('options').open") else page.js(
        "document.getElementById('reset-options').click()")
    page.browser.fill("#message", "What is a KV cache?")
    predicted = page.until("return document.getElementById('prediction').textContent", "a prediction", 5)
    assert re.match(r"Predicted first token .* m?s, \d[\d,]* of [\d,]+ tokens? cached", predicted), predicted
    turns = page.turns()
    page.browser.press("Enter")
    page.until(f"return document.querySelectorAll('.turn.assistant').length === {turns + 1}", "the turn begins")
    page.wait_for_answer()
    figures = page.js("return [...document.querySelectorAll('.report-figures')].at(-1).textContent")
    cached = int(re.search(r"([\d,]+) of [\d,]+ prompt", figures).group(1).replace(",", ""))
    assert cached > 0, figures
    return f"{predicted}; then {cached} tokens came from the cache"


@check
def everything_works_by_keyboard_alone(page):
    page.load()
    backwards = [page.focused()]
    while backwards[-1] != "skip" and len(backwards) < 20:
        page.browser.press("Shift+Tab")
        backwards.append(page.focused())
    assert backwards[0] == "message" and backwards[-1] == "skip", backwards
    page.browser.press("Enter")
    assert page.focused() == "message", page.focused()
    page.browser.press(*"one", "Shift+Enter", *"two")
    assert page.js("return document.getElementById('message').value") == "one\ntwo"
    assert page.js("return document.querySelectorAll('.turn').length") == 0, "Shift+Enter has sent the message"
    page.wander()
    for _ in range(5):  # an answer may be over before the key comes
        turns = page.turns()
        page.browser.fill("#message", LONG)
        page.browser.press("Enter")
        page.until(f"return document.querySelectorAll('.turn.assistant').length > {turns}", "the turn begins")
        page.until(f"return {ANSWER}?.textContent.length > 3 || !document.querySelector('.writing')", "its text begins or it ends")
        page.browser.press("Escape")
        page.until("return !document.querySelector('.writing')", "it ends", 3)
        if page.js("return document.querySelector('.turn.assistant:last-of-type .note')?.textContent.startsWith('Stopped')"):
            break
    else:
        raise AssertionError("Escape stops no answer")
    page.js("document.getElementById('reset-options').click()")
    page.js("document.getElementById('message').focus()")
    order = []
    for _ in range(60):
        page.browser.press("Tab")
        order.append(page.focused())
        if order[-1] == "map":
            break
        ring = page.js("return document.activeElement === document.body || getComputedStyle(document.activeElement).outlineStyle !== 'none'")
        assert ring, f"no ring around {order[-1]}"
    assert order[-1] == "map", f"the map is not reached: {order}"
    page.browser.press("Home", "ArrowRight", "ArrowDown", "ArrowRight")
    told = page.text(".group .readout")
    assert re.match(r"Page \d+", told), told
    page.browser.press("Tab")
    assert page.focused() != "map", "the map is a trap"
    return f"{' → '.join(order)}: {told}"


@check
def a_conversation_is_there_again_after_a_reload(page):
    page.load()
    page.js("document.getElementById('reset-options').click()")
    page.ask("What is a KV cache?")
    page.wait_for_answer()
    before = page.js("return document.getElementById('turns').textContent")
    page.reload()
    page.until("return document.querySelectorAll('.turn').length === 2", "the conversation is shown again")
    after = page.js("return document.getElementById('turns').textContent")
    assert before == after, (before, after)
    page.load()
    assert page.js("return document.querySelectorAll('.turn').length") == 0, "another tab begins with it"
    return f"{len(after)} characters, figures and all"


@check
def answers_and_messages_branch_and_share_what_is_cached(page):
    page.load()
    page.ask("What is a KV cache?")
    page.wait_for_answer()
    first = page.texts("assistant")[0]
    page.browser.click(".turn.assistant [aria-label='Answer again']")
    page.until("return document.querySelector('.turn.assistant .branches')?.textContent.includes('2 of 2')", "a second answer begins")
    page.wait_for_answer()
    page.until("return document.querySelector('.turn.assistant .shared')", "what it shares is told")
    shared = page.text(".turn.assistant .shared")
    assert int(re.search(r"of (\d+) tokens", shared).group(1)) > 0, shared
    page.js("document.querySelector('.turn.assistant [aria-label=\"Previous answer\"]').focus()")
    page.browser.press("Enter")
    page.until("return document.querySelector('.turn.assistant .branches').textContent.includes('1 of 2')", "the first is shown")
    assert page.texts("assistant") == [first]
    assert page.focused() != "BODY" and page.text("#announce") == "Answer 1 of 2.", page.focused()

    page.js("document.getElementById('message').focus()")
    page.browser.press("ArrowUp")  # edits the last message
    assert page.js("return document.activeElement.getAttribute('aria-label')") == "Edited message"
    page.browser.press("Escape")
    assert page.texts("user") == ["What is a KV cache?"] and page.js("return !document.querySelector('form.edit')")
    page.browser.press("Enter")  # the focus is on Edit again
    page.js("document.querySelector('form.edit textarea').value = 'What is a KV cache for?'")
    page.browser.press("Enter")
    page.until("return document.querySelector('.turn.user .branches')?.textContent.includes('2 of 2')", "the message has a branch")
    page.wait_for_answer()
    assert page.texts("user") == ["What is a KV cache for?"]
    page.reload()
    page.until("return document.querySelector('.turn.user .branches')?.textContent.includes('2 of 2')", "branches are kept")
    page.browser.click(".turn.user [aria-label='Previous message']")
    assert page.texts("user") == ["What is a KV cache?"]
    page.until("return document.querySelector('.turn.assistant .branches')?.textContent.includes('2 of 2')", "with the answers of its own")
    return shared


@check
def conversations_are_found_named_deleted_and_moved(page):
    page.load()
    page.ask("Tell me a short story about a zebra.")
    page.wait_for_answer()
    page.browser.press("Control+k")
    page.until("return document.getElementById('library').open && document.querySelectorAll('#library-list li').length >= 2", "they are listed")
    count = page.js("return document.querySelectorAll('#library-list li').length")
    assert page.text("#library-list .open[aria-current] .name") == "Tell me a short story about a zebra."
    page.browser.type("#library-search", "zebra")
    page.until("return document.querySelectorAll('#library-list li').length === 1", "one is found")
    page.browser.click("#library-list [aria-label^='Rename']")
    page.js("document.querySelector('.rename input').value = 'Stripes'")
    page.browser.click(".rename .primary")
    page.until("return document.querySelector('#library-list .name')?.textContent === 'Stripes'", "it has its name")

    exported = page.browser.js_async("""const done = arguments[0];
        import('./store.js').then(async ({Store}) => done(await new Store().export_all()), (error) => done(String(error)));""")
    assert len(json.loads(exported)["conversations"]) == count
    page.browser.click("#library-list [aria-label^='Delete']")
    assert page.js("return document.querySelectorAll('#library-list li').length") == 1, "gone at once"
    page.browser.click("#library-list [aria-label^='Really']")
    page.until("return document.querySelectorAll('#library-list li').length === 0", "it is gone")
    assert page.js("return document.querySelectorAll('.turn').length") == 0, "what was deleted is still shown"

    page.give_file("#import-file", "conversations.json", exported)
    page.until("return document.getElementById('library-state').textContent === '1 conversation imported.'", "it is back")
    for wrong, said in (("no", "This file is not JSON."), ('{"a": 1}', "This file has no conversations of quire."),
                        ('{"quire": "conversations", "conversations": [{"id": "x", "nodes": [{"id": "a", "parent": "b", "role": "user"}]}]}',
                         "a message of it has no place in the conversation")):
        page.give_file("#import-file", "wrong.json", wrong)
        page.until("return document.getElementById('library-state').textContent === arguments[0]".replace("arguments[0]", json.dumps(said)), said)
    page.js("document.getElementById('library-search').focus()")
    page.until("return document.querySelector('#library-list .name')?.textContent === 'Stripes'", "it is found again")
    page.browser.press("ArrowDown", "Enter")
    page.until("return document.querySelector('.turn.user .text')?.textContent.includes('zebra')", "it is open")
    assert page.js("return !document.getElementById('library').open")
    page.browser.press("Control+Shift+o")
    assert page.js("return document.querySelectorAll('.turn').length") == 0 and page.focused() == "message"
    return f"{count} conversations, {len(exported)} bytes of JSON"


@check
def an_answer_goes_on_while_another_conversation_is_open(page):
    page.load()
    page.ask("Tell me a short story about a fox.")
    page.until(f"return {ANSWER}?.textContent.length > 10", "it begins")
    page.browser.click("#new-conversation")
    assert page.js("return document.querySelectorAll('.turn').length") == 0 and page.js("return document.getElementById('stop').hidden")
    page.browser.press("Control+k")
    page.until("return document.querySelector('#library-list .open')", "it is listed")
    page.browser.click("#library-list .open")
    page.wait_for_answer()
    length = len(page.texts("assistant")[0])
    page.reload()
    page.until("return document.querySelectorAll('.turn').length === 2", "it is kept")
    assert len(page.texts("assistant")[0]) == length
    return f"{length} characters"


@check
def what_is_deleted_while_it_is_answered_stays_deleted(page):
    page.load()
    page.wander()
    page.ask(LONG)
    page.until(f"return {ANSWER}?.textContent.length > 3 || !document.querySelector('.writing')", "it begins")
    page.browser.press("Control+k")
    page.until("return document.querySelector('#library-list .open[aria-current]')", "it is listed")
    count = page.js("return document.querySelectorAll('#library-list li').length")
    page.js("document.querySelector('#library-list .open[aria-current]').closest('li').querySelector('[aria-label^=Delete]').click()")
    page.js("document.querySelector('#library-list [aria-label^=Really]').click()")
    page.until(f"return document.querySelectorAll('#library-list li').length === {count - 1}", "it is gone")
    page.browser.press("Escape")
    page.until("return /^0 running/.test(document.getElementById('request-counts').textContent)", "it is not answered any more", 6)
    page.browser.press("Control+k")
    time.sleep(0.5)
    assert page.js("return document.querySelectorAll('#library-list li').length") == count - 1, "it is there again"
    page.browser.press("Escape")
    page.js("document.getElementById('reset-options').click()")
    return f"{count - 1} are left"


@check
def an_answer_survives_a_reload(page):
    for _ in range(20):  # an answer may be over before the page is left
        page.load()
        page.wander()
        page.ask(LONG)
        page.until(f"return {ANSWER}?.textContent.length > 20 || !document.querySelector('.writing')", "it begins")
        time.sleep(1.1)  # so that something of it is kept
        if not page.js("return document.querySelector('.writing') !== null"):
            continue
        before = page.texts("assistant")[0]
        page.reload()
        page.until("return document.querySelectorAll('.turn').length === 2", "the conversation is shown again")
        page.until(f"return !document.querySelector('.writing') || {ANSWER}.textContent.length > {len(before)}", "the answer goes on", 20)
        if len(page.texts("assistant")[0]) > len(before):
            break
    else:
        raise AssertionError("no answer was long enough")
    after = page.texts("assistant")[0]
    assert after.startswith(before[:20]), (before[:40], after[:40])
    page.browser.press("Escape")
    page.until("return !document.querySelector('.writing')", "it is stopped", 4)
    page.until("return /^0 running/.test(document.getElementById('request-counts').textContent)", "the engine is idle again", 6)
    page.js("document.getElementById('reset-options').click()")
    return f"{len(before)} characters before, {len(after)} after, then stopped"


@check
def an_answer_whose_stream_is_forgotten_breaks_off_where_it_was(page):
    page.load()
    page.browser.js_async("""const done = arguments[0];
        Promise.all([import('./store.js'), import('./conversation.js')]).then(async ([{Store}, {Conversation}]) => {
          const left = new Conversation();
          const asked = left.add(null, 'user', {content: 'A question'});
          left.add(asked.id, 'assistant', {content: 'The beginning of', pending: true, stream: 'chatcmpl-00000000000000000000000000000000'});
          await new Store().save(left);
          sessionStorage.setItem('quire.open', left.id);
          done();
        }, (error) => done(String(error)));""")
    page.reload()
    page.until("return document.querySelector('.turn.assistant .note')?.textContent.startsWith('It breaks off here')", "it says so")
    assert page.texts("assistant") == ["The beginning of"]
    page.browser.console()  # says 404
    return "with what was kept of it"


@check
def what_the_browser_has_no_room_for_is_told(page):
    seen = page.browser.js_async("""const done = arguments[0];
        Promise.all([import('./store.js'), import('./conversation.js')]).then(async ([{Store}, {Conversation}]) => {
          const store = new Store();
          const large = new Conversation();
          large.add(null, 'user', {content: 'x'.repeat(65 * 2 ** 20)});
          const before = (await store.list()).length;
          const said = await store.save(large).then(() => '', (error) => error.message);
          done([said, (await store.list()).length - before]);
        }, (error) => done([String(error)]));""")
    assert seen[0].startswith("This conversation is not kept: all together would be more than 64 MB.") and seen[1] == 0, seen
    return seen[0]


@check
def files_go_with_a_message_as_text(page):
    page.load()
    page.js("""const real = window.fetch;
               window.sent = [];
               window.fetch = (path, options) => { if (String(path).endsWith('completions')) sent.push(JSON.parse(options.body)); return real(path, options); };""")
    page.give_file("#attach-file", "picture.bin", [137, 80, 78, 71, 0, 255])
    page.until("return document.getElementById('attach-error').textContent === 'picture.bin is not a text.'", "what is no text is refused")
    page.give_file("#attach-file", "large.txt", "x" * (2**20 + 1))
    page.until("return document.getElementById('attach-error').textContent.startsWith('large.txt has 1.0 MB')", "what is too large is refused")
    page.give_file("#attach-file", "notes.md", "# Notes\n```\nsum\n```\n<script>alert(1)</script>")
    page.until("return document.querySelector('#attached li')?.textContent.startsWith('notes.md')", "it is listed")
    page.ask("What is in it about the cache?")
    page.wait_for_answer()
    sent = page.js("return sent[0].messages.at(-1).content")
    assert sent == "File notes.md:\n````\n# Notes\n```\nsum\n```\n<script>alert(1)</script>\n````\n\nWhat is in it about the cache?", sent
    assert page.js("return document.querySelectorAll('#attached li').length") == 0
    assert page.text(".turn.user .files summary").startswith("notes.md") and page.texts("user") == ["What is in it about the cache?"]
    return f"{len(sent)} characters sent"


def small_pdf(words):
    """A PDF of one page with these words."""
    content = f"BT /F1 18 Tf 20 100 Td ({words}) Tj ET".encode()
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
               b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
               b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content), b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return out + b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(places) + 1, table, len(places) + 1, len(out))


def libraries_of(page):
    return page.browser.js_async("const done = arguments[0]; import('./libraries.js').then(({libraries}) => done(libraries), (error) => done({error: String(error)}));")


@check
def the_words_of_a_pdf_go_with_a_message(page):
    page.load()
    page.give_file("#attach-file", "letter.pdf", list(small_pdf("Words of a letter")))
    if not libraries_of(page)["pdf"]:
        page.until("return document.getElementById('attach-error').textContent === 'letter.pdf is a PDF, and this program was built without what reads them.'", "it is refused")
        return "refused with a sentence: built without a reader"
    page.until("return document.querySelector('#attached li')?.textContent.startsWith('letter.pdf')", "it is read")
    page.give_file("#attach-file", "broken.pdf", list(b"%PDF-1.4 and nothing more"))
    page.until("return document.getElementById('attach-error').textContent === 'broken.pdf cannot be read as a PDF.'", "a broken one is refused")
    page.ask("What does it say?")
    page.until("return document.querySelector('.turn.user .files pre')", "it stands in the conversation")
    said = page.text(".turn.user .files pre")
    page.wait_for_answer()
    assert said == "Words of a letter", said
    return said


@check
def formulas_are_set_and_lead_nowhere(page):
    formulas = ["x^2", "\\sqrt{\\frac{a}{b}}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\underbrace{a+b}_{c}", "\\color{red}x", "\\lceil n/32 \\rceil"]
    hostile = ["\\href{javascript:alert(1)}{x}", "\\includegraphics{http://127.0.0.1:1/x.png}", "\\htmlStyle{position:fixed}{x}", "\\def\\a{\\a\\a}\\a", "\\undefined", "\\rule{1e9em}{1e9em}"]
    seen = page.browser.js_async("""const [formulas, hostile, done] = arguments;
        import('./answer_text.js').then(async ({TextView}) => {
          const shown = async (list) => {
            const element = document.createElement('div');
            element.className = 'text';
            document.getElementById('turns').append(element);
            new TextView(element).show(list.map((f, i) => (i % 2 ? `$$\\n${f}\\n$$` : `A formula $${f}$ and \\\\(y\\\\).`)).join('\\n\\n'));
            for (let i = 0; i < 100 && !element.querySelector('.katex, .settled'); ++i) await new Promise((resolve) => setTimeout(resolve, 20));
            return element;
          };
          const good = await shown(formulas);
          const bad = await shown(hostile);
          const counts = [good.querySelectorAll('.katex').length, good.querySelectorAll('math').length, good.querySelectorAll('code').length];
          const links = [...bad.querySelectorAll('a, img, [style*=fixed]')].map((e) => e.outerHTML);
          const widest = Math.max(...[...bad.children].map((e) => e.scrollWidth));
          const kept = bad.textContent;
          good.remove();
          bad.remove();
          done({counts, links, kept, widest});
        }, (error) => done({error: String(error.stack)}));""", formulas, hostile)
    assert seen.get("links") == [], seen
    if not libraries_of(page)["maths"]:
        assert seen["counts"] == [0, 0, 9], seen["counts"]
        return "stand as they were written: built without a library"
    assert seen["counts"] == [9, 9, 0], seen["counts"]
    assert "undefined" in seen["kept"] and "htmlStyle" in seen["kept"], seen["kept"]
    return f"{seen['counts'][0]} formulas, each also as MathML; hostile ones stay text"


@check
def tools_are_called_shown_and_answered(page):
    tools = [{"name": "clock", "description": "Tells the time.", "parameters": {
        "type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"], "additionalProperties": False}}]
    page.load()
    page.js("""const real = window.fetch;
               window.sent = [];
               window.fetch = (path, options) => { if (String(path).endsWith('completions')) sent.push(JSON.parse(options.body)); return real(path, options); };
               document.getElementById('options').open = true;""")
    page.browser.fill("#tools", "nope")
    page.ask("Hello")
    said = page.text("#option-error")
    assert said.startswith("Tools: this is not JSON"), said
    page.browser.fill("#tools", json.dumps(tools))
    page.js("""const choice = document.getElementById('tool-choice');
               choice.value = 'required';
               choice.dispatchEvent(new Event('input', {bubbles: true}));
               document.getElementById('options').open = false""")
    page.ask("What time is it in Zurich?")
    page.until("return !document.querySelector('.writing') && document.querySelector('.results')", "the call and a form for its result", 25)
    name = page.text(".call b")
    arguments = json.loads(page.text(".call-arguments"))
    assert name == "clock" and arguments["zone"] in ("UTC", "CET"), (name, arguments)
    if page.server:
        thought = page.js("const fold = document.querySelector('.turn.assistant:last-of-type .reasoning'); return fold && [fold.open, fold.textContent]")
        assert thought and not thought[0] and "They ask" in thought[1], thought
    page.browser.fill(".results textarea", "12:30")
    page.browser.click(".results .primary")
    page.until("return !document.querySelector('.writing') && document.querySelectorAll('.turn.assistant').length === 2 && document.querySelectorAll('.turn.assistant .report').length === 2",
               "the answer goes on", 25)
    first, second = page.js("return sent")[-2:]
    assert first["tools"][0]["function"]["name"] == "clock" and first["tool_choice"] == "required", first
    call, result = second["messages"][-2:]
    assert "tool_choice" not in second and call["tool_calls"][0]["id"] == result["tool_call_id"], second["messages"]
    assert result["role"] == "tool" and result["content"] == "12:30", result
    assert page.texts("tool") == ["12:30"], page.texts("tool")
    assert not page.js("return document.querySelector('.results')"), "it still asks for the result"
    page.reload()
    page.until("return document.querySelector('.call b')?.textContent === 'clock'", "the call is there after a reload")
    assert page.texts("tool") == ["12:30"], page.texts("tool")
    page.load()
    page.js("document.getElementById('options').open = true")
    page.browser.click("#reset-options")
    page.browser.fill("#schema", '{"enum": ["yes", "no"]}')
    page.js("""const real = window.fetch;
               window.sent = [];
               window.fetch = (path, options) => { if (String(path).endsWith('completions')) sent.push(JSON.parse(options.body)); return real(path, options); };
               document.getElementById('options').open = false""")
    page.ask("Is it late?")
    page.wait_for_answer()
    form = page.js("return sent")[-1]["response_format"]
    assert form["json_schema"]["schema"] == {"enum": ["yes", "no"]}, form
    if not page.server:
        assert page.texts("assistant")[-1] in ('"yes"', '"no"'), page.texts("assistant")
    page.js("document.getElementById('options').open = true")
    page.browser.click("#reset-options")
    page.js("document.getElementById('options').open = false")
    return f"{name}({arguments['zone']}) gave 12:30"


@check
def presets_keep_the_system_message_and_the_options(page):
    page.load()
    page.js("localStorage.removeItem('quire.presets'); document.getElementById('options').open = true")
    page.browser.fill("#system", "Be brief.")
    page.browser.fill("[data-option=temperature]", "0.2")
    page.browser.type("#preset-name", "Brief")
    page.browser.press("Enter")
    assert page.text("#preset-state") == "“Brief” is kept."
    page.browser.click("#reset-options")
    assert page.js("return document.getElementById('system').value") == ""
    page.load()
    page.js("""document.getElementById('options').open = true;
               const choice = document.getElementById('preset');
               choice.value = 'Brief';
               choice.dispatchEvent(new Event('change', {bubbles: true}));""")
    values = page.js("return [document.getElementById('system').value, document.querySelector('[data-option=temperature]').value]")
    assert values == ["Be brief.", "0.2"], values
    page.browser.click("#preset-delete")
    page.browser.click("#reset-options")
    page.js("document.getElementById('options').open = false")
    return "Brief: 0.2"


@check
def keys_work_everywhere(page):
    page.load()
    page.js("document.getElementById('log').focus()")
    page.browser.press("/")
    assert page.focused() == "message" and page.js("return document.getElementById('message').value") == ""
    page.browser.press("?")
    assert page.js("return document.getElementById('message').value") == "?", "a key is taken from who types"
    page.browser.fill("#message", "")
    page.js("document.getElementById('log').focus()")
    page.browser.press("?")
    assert page.js("return document.getElementById('keys-dialog').open")
    page.browser.press("Escape")
    assert page.js("return !document.getElementById('keys-dialog').open")
    return "/, ?, Ctrl+K, Ctrl+Shift+O"


@check
def an_option_that_cannot_be_meant_is_refused_with_a_sentence(page):
    page.js("document.getElementById('options').open = true")
    page.browser.fill("[data-option=top_p]", "7")
    page.ask("Hello")
    said = page.text("#option-error")
    assert said.startswith("Top-p:") and page.js("return document.activeElement.dataset.option") == "top_p", said
    assert page.js("return document.getElementById('message').value") == "Hello", "the message is lost"
    page.js("document.getElementById('reset-options').click(); document.getElementById('options').open = false")
    return said


@check
def light_and_dark_follow_the_system_and_the_button(page):
    def paper():
        return page.js("return getComputedStyle(document.body).backgroundColor")
    light = paper()
    page.browser.prefer(color_scheme="dark")
    dark = paper()
    assert light != dark, "the system's choice changes nothing"
    page.browser.click("#theme")
    assert paper() == light, "the button changes nothing"
    page.load()
    assert paper() == light, "the choice is forgotten"
    page.js("localStorage.removeItem('quire.theme')")
    page.load()
    assert paper() == dark
    page.browser.prefer(color_scheme="light")
    return f"{light} and {dark}"


CONTRAST = """
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const backdrop = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = rgb(getComputedStyle(e).backgroundColor);
    if (colour[3] !== 0) return colour;
  }
  return [255, 255, 255];
};
const poor = [];
let texts = 0;
for (const element of document.querySelectorAll('body *')) {
  if (![...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !element.checkVisibility() || element.closest('.visually-hidden')) continue;
  const [a, b] = [luminance(rgb(getComputedStyle(element).color)), luminance(backdrop(element))].sort((x, y) => y - x);
  ++texts;
  if ((a + 0.05) / (b + 0.05) < 4.5) poor.push(`${element.className || element.tagName} ${((a + 0.05) / (b + 0.05)).toFixed(2)}`);
}
return [texts, poor];
"""


@check
def every_text_has_a_contrast_of_4_5_in_light_and_dark(page):
    counts = []
    for scheme in ("light", "dark"):
        page.browser.prefer(color_scheme=scheme)
        texts, poor = page.js(CONTRAST)
        assert not poor, f"{scheme}: {poor}"
        counts.append(texts)
    page.browser.prefer(color_scheme="light")
    return f"{counts[0]} texts in light, {counts[1]} in dark"


@check
def every_control_has_a_name(page):
    nameless = page.js("""return [...document.querySelectorAll('button, input, select, textarea, a, [tabindex]')].filter((e) =>
        !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.labels?.length || e.textContent.trim())).map((e) => e.outerHTML)""")
    assert not nameless, nameless
    assert page.js("return [...document.querySelectorAll('header, main, nav')].length") == 3
    return "landmarks header, nav, main; no control without a name"


@check
def a_phone_shows_one_column_with_two_views(page):
    page.browser.size(360, 740)
    page.load()
    assert page.overflow() <= 0, f"{page.overflow()} px too wide"
    assert page.js("return document.getElementById('live').offsetParent === null"), "both views are there at once"
    page.browser.click("#show-live")
    page.until("return document.getElementById('live').offsetParent !== null && document.querySelector('.map')?.width > 0", "the live view")
    assert page.js("return document.getElementById('chat').offsetParent === null")
    assert page.overflow() <= 0 and page.js("const e = document.getElementById('live'); return e.scrollWidth <= e.clientWidth"), "too wide"
    page.browser.click("#show-chat")
    page.ask("What is a KV cache?")
    page.wait_for_answer()
    assert page.overflow() <= 0
    box = page.js("const b = document.getElementById('send').getBoundingClientRect(); return [b.right, b.bottom]")
    assert box[0] <= 360 and box[1] <= 740, box
    return "nothing wider than 360 px; Send is in reach"


@check
def a_wide_window_shows_both_side_by_side(page):
    page.browser.size(1280, 900)
    page.load()
    boxes = page.js("return ['chat', 'live'].map((id) => document.getElementById(id).getBoundingClientRect().toJSON())")
    assert boxes[0]["right"] <= boxes[1]["left"] + 1 and boxes[1]["right"] <= 1280 and page.overflow() <= 0, boxes
    return f"chat {boxes[0]['width']:.0f} px, live {boxes[1]['width']:.0f} px"


@check
def asking_rests_while_the_tab_is_hidden(page):
    page.js("""Object.defineProperty(document, 'hidden', {configurable: true, get: () => true});
               document.dispatchEvent(new Event('visibilitychange'));""")
    time.sleep(0.3)
    page.js("performance.clearResourceTimings()")
    time.sleep(2.3)
    asked = page.js("return performance.getEntriesByType('resource').length")
    assert asked == 0, f"{asked} calls while hidden"
    page.js("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    page.until("return performance.getEntriesByType('resource').length >= 2", "it goes on", 2)
    return "no call in 2.3 s, then it goes on"


@check
def less_motion_is_shown_to_who_asks_for_it(page):
    page.browser.prefer(color_scheme="light", reduced_motion="reduce")
    duration = page.js("return getComputedStyle(document.querySelector('.meter span')).transitionDuration")
    page.browser.prefer(color_scheme="light")
    assert duration == "0s", duration
    return "meters jump"


@check
def nothing_is_said_on_the_console(page):
    page.said += page.browser.console()
    bad = [entry["message"] for entry in page.said if entry["level"] in ("SEVERE", "WARNING")]
    assert not bad, bad
    return f"{len(page.said)} entries, none a warning or an error"


def check_failures(page):
    """With the mock only: a refusal, a server that goes away and comes back, a key."""
    page.ask("Please fail.")
    page.until("return document.querySelector('.turn .error')", "the error is told")
    said = page.js("return document.querySelector('.turn .error').firstChild.data")
    assert said == "The prompt has 9000 tokens, but the model's context has room for 4096.", said
    yield "an error is a sentence", said

    port = page.server.server_port
    page.server.go_away()
    page.until("return document.getElementById('server-state').textContent === 'The server does not answer; trying again.'", "the loss is told")
    page.server = mock_server.start(port, key="sesame")
    page.until("return document.getElementById('key-dialog').open", "the new server's key is asked for")
    lost = [entry for entry in page.browser.console() if entry["level"] == "SEVERE"]
    assert lost, "the browser's log is not heard, so its silence above means nothing"
    page.browser.type("#key", "sesame")
    page.browser.press("Enter")
    page.until("return document.getElementById('server-state').textContent === ''", "it recovers")
    page.browser.fill("#message", "What is a KV cache?")
    page.browser.press("Enter")
    page.wait_for_answer()
    yield "a lost server is told, comes back and asks for its key", page.text(".turn.assistant:last-of-type .report-figures")


def take_screenshots(page, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for width, height in ((1280, 900), (400, 740)):
        page.browser.size(width, height)
        page.js("location.hash = 'live'")
        time.sleep(0.6)
        if page.js("return document.querySelector('#timeline li .row-more').hidden"):
            page.unfold_row()
            page.browser.click("#timeline li details.attention summary")
        page.until(f"return document.querySelector('{HEAT}')?.offsetParent && true", "a map is drawn")
        page.js("document.getElementById('live').scrollTop += document.querySelector('#timeline li details.attention').getBoundingClientRect().top - 110")
        page.browser.hover(HEAT, 20, 20)
        for scheme in ("light", "dark"):
            page.browser.prefer(color_scheme=scheme)
            time.sleep(0.3)
            assert page.overflow() <= 0, "the map makes the page wider"
            page.browser.screenshot(folder / f"attention_{scheme}_{width}.png")
    page.unfold_row(False)
    for width, height in ((1280, 900), (360, 740)):
        page.browser.size(width, height)
        for scheme in ("light", "dark"):
            page.browser.prefer(color_scheme=scheme)
            for view in ("chat", "live"):
                page.js("location.hash = arguments[0]", view)
                page.js("document.getElementById('log').scrollTop = 0; document.getElementById('live').scrollTop = arguments[0]",
                        500 if view == "live" and width > 900 else 0)
                time.sleep(0.6)
                page.browser.screenshot(folder / f"{view}_{scheme}_{width}.png")


def take_chat_screenshots(page, folder):
    """What can be in a conversation: Markdown, branches, files, the list of conversations."""
    page.browser.size(1280, 900)
    page.js("location.hash = 'chat'")
    page.load()
    page.give_file("#attach-file", "notes.md", "# Notes\nPages are shared.")
    page.until("return document.querySelector('#attached li')", "the file is listed")
    page.ask("Explain the pages, in Markdown.")
    page.wait_for_answer()
    page.browser.click(".turn.assistant [aria-label='Answer again']")
    page.until("return document.querySelector('.turn.assistant .branches')?.textContent.includes('2 of 2')", "a second answer begins")
    page.wait_for_answer()
    for width, height in ((1280, 900), (360, 740)):
        page.browser.size(width, height)
        for scheme in ("light", "dark"):
            page.browser.prefer(color_scheme=scheme)
            for name, script in (("top", "document.getElementById('log').scrollTop = 0"), ("end", "document.getElementById('log').scrollTop = 1e6"),
                                 ("library", "document.getElementById('show-library').click()")):
                page.js(script)
                time.sleep(0.5)
                assert page.overflow() <= 0, f"{name} makes the page wider at {width} px"
                page.browser.screenshot(folder / f"talk_{name}_{scheme}_{width}.png")
            page.js("document.getElementById('library').close(); document.getElementById('options').open = true")
            time.sleep(0.2)
            page.browser.screenshot(folder / f"talk_options_{scheme}_{width}.png")
            page.js("document.getElementById('options').open = false")


def start_program(path):
    """The program serving the house model on a port that is free, and its address."""
    program = subprocess.Popen([path, "serve", "--port", "0"], stderr=subprocess.PIPE, text=True)
    said = program.stderr.readline()
    found = re.search(r"http://\S+", said)
    if not found:
        sys.exit(f"{path} serve said: {said}")
    threading.Thread(target=program.stderr.read, daemon=True).start()
    return program, found.group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", help="the program to serve the page with")
    parser.add_argument("--url")
    parser.add_argument("--screenshots", type=Path)
    options = parser.parse_args()
    chromedriver, chromium = find_programs()
    if not (chromedriver and chromium):
        print("skipped: the page is tested with chromium and chromedriver, and this machine does not have both")
        return 77
    program = None
    if options.quire:
        program, options.url = start_program(options.quire)
    server = None if options.url else mock_server.start(token_ms=12)
    url = (options.url or f"http://127.0.0.1:{server.server_port}").rstrip("/")
    began = time.monotonic()
    failed = []
    browser = Browser(chromedriver, chromium)
    try:
        page = Page(browser, url)
        page.server, page.said = server, []
        for function in CHECKS:
            name = function.__name__.replace("_", " ")
            try:
                print(f"ok      {name}: {function(page)}", flush=True)
            except Exception as error:
                failed.append(f"{name}: {error}")
                print(f"FAILED  {failed[-1]}", flush=True)
                if not isinstance(error, AssertionError):
                    traceback.print_exc()
        if options.screenshots:
            page.ask("Tell me a short story about a fox.")
            page.wait_for_answer()
            take_screenshots(page, options.screenshots)
            take_chat_screenshots(page, options.screenshots)
            page.browser.size(1280, 900)
        if server:
            try:
                for name, seen in check_failures(page):
                    print(f"ok      {name}: {seen}", flush=True)
            except Exception as error:
                failed.append(str(error))
                print(f"FAILED  {error}", flush=True)
    finally:
        browser.close()
        if program:
            program.terminate()
            program.wait()
    print(f"{len(CHECKS)} checks, {len(failed)} failed, {time.monotonic() - began:.1f} s", *failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
