// Requests over the last twenty seconds: one row each, waiting, prefill and tokens from left to right, and a row of engine steps.

import { by_id, make, set_text } from './dom.js';
import { RequestRow } from './request_row.js';
import { StepStrip } from './step_strip.js';

const kSpanMs = 20_000;
const kRows = 8;
const kLagMs = 600;      // behind the server's clock, so that what is shown has been heard of
const kAfterMs = 1500;   // the view stops this long after the last work
const kFrameMs = 100;    // ten pictures a second: the machine may be computing the answer itself

const reduced_motion = matchMedia('(prefers-reduced-motion: reduce)');

const key_of = ({ id, choice }) => `${id} ${choice ?? 0}`;  // several answers to one prompt share an id
const end_of = (request) => request.finished_ms ?? Infinity;

export class Timeline {
  #rows = new Map();     // request id and choice -> RequestRow
  #steps;
  #now_ms = 0;           // the server's clock ...
  #heard_at = 0;         // ... when this page's clock said so
  #last_work_ms = 0;
  #timer = 0;
  #readout = by_id('timeline-readout');

  // on_cancel(id), on_notice(id or null): a request is to be ended; the reader looks at a request. load_steps(id, choice)
  // gives its passes, load_attention(id, choice, {layer, head}, signal) where a head looks.
  constructor(calls) {
    this.calls = calls;
    this.#steps = new StepStrip(by_id('steps'), (text) => set_text(this.#readout, text));
    by_id('axis').append(...[20, 15, 10, 5].map((s) => make('li', '', `−${s} s`)), make('li', '', 'now'));
    new ResizeObserver(() => this.#draw()).observe(by_id('timeline'));
    document.addEventListener('themechange', () => this.#draw());
    document.addEventListener('visibilitychange', () => this.#animate());
  }

  forget() {
    this.#steps.forget();
  }

  show({ now_ms, requests, steps, machine }) {
    this.#now_ms = now_ms;
    this.#heard_at = performance.now();
    const live = requests.some((request) => request.finished_ms == null);
    this.#last_work_ms = live ? Infinity : requests.length ? Math.max(...requests.map(end_of)) : now_ms;
    this.#steps.show(steps, machine);
    this.#show_rows(requests);
    this.#draw();
    this.#animate();
  }

  #show_rows(requests) {
    const start = this.#window().end - kSpanMs;
    const shown = requests.filter((request) => end_of(request) > start).slice(0, kRows);
    const keys = new Set(shown.map(key_of));
    for (const [key, row] of this.#rows) {
      if (keys.has(key) || row.unfolded || row.element.contains(document.activeElement)) continue;
      row.element.remove();
      this.#rows.delete(key);
    }
    const list = by_id('timeline');
    shown.forEach((request, i) => {
      let row = this.#rows.get(key_of(request));
      if (!row) {
        row = new RequestRow(request.id, {
          ...this.calls, on_point: (text) => set_text(this.#readout, text),
        });
        this.#rows.set(key_of(request), row);
      }
      row.show(request);
      if (list.children[i] !== row.element) list.insertBefore(row.element, list.children[i] ?? null);
    });
  }

  // What is in sight. Without work the view stands still and keeps showing the last of it.
  #window() {
    const estimate = reduced_motion.matches ? this.#now_ms : this.#now_ms + performance.now() - this.#heard_at - kLagMs;
    const end = Math.min(estimate, this.#last_work_ms + kAfterMs);
    return { end, still: estimate > this.#last_work_ms + kAfterMs };
  }

  #draw() {
    const { end, still } = this.#window();
    const view = { start: end - kSpanMs, end };
    for (const row of this.#rows.values()) row.draw(view);
    this.#steps.draw(view);
    set_text(by_id('axis').lastElementChild, still ? '0 s' : 'now');
    return still;
  }

  #animate() {
    clearInterval(this.#timer);
    if (document.hidden || reduced_motion.matches || this.#window().still) return;
    this.#timer = setInterval(() => {
      if (by_id('live').offsetParent !== null && this.#draw()) clearInterval(this.#timer);
    }, kFrameMs);
  }
}
