// Every engine step of the last seconds as a bar: as wide as it took, as high as the share of the machine that it reached.

import { theme_colour } from './colours.js';
import { canvas_context } from './dom.js';
import { count, ms, percent, plural, rate } from './format.js';
import { draw_grid } from './request_row.js';

const kHeight = 36;
const kKept = 4096;

export class StepStrip {
  #steps = [];  // oldest first
  #machine = null;
  #view = null;

  constructor(canvas, on_point) {
    this.canvas = canvas;
    canvas.addEventListener('pointermove', (event) => on_point(this.#words_at(event.offsetX)));
    canvas.addEventListener('pointerdown', (event) => on_point(this.#words_at(event.offsetX)));
    canvas.addEventListener('pointerleave', () => on_point(''));
  }

  forget() {
    this.#steps = [];
  }

  show({ last }, machine) {
    const newest = this.#steps.at(-1)?.n ?? -1;
    this.#machine = machine;
    this.#steps.push(...last.filter(({ n }) => n > newest));
    this.#steps.splice(0, this.#steps.length - kKept);
  }

  draw(view) {
    this.#view = view;
    const width = this.canvas.clientWidth;
    if (!width) return;
    const context = canvas_context(this.canvas, width, kHeight);
    const scale = width / (view.end - view.start);
    draw_grid(context, width, kHeight);
    context.fillRect(0, 0, width, 1);  // the whole machine
    const colours = {
      memory: theme_colour('--memory'), arithmetic: theme_colour('--arithmetic'), neither: theme_colour('--neither'),
    };
    for (const step of this.#steps) {
      const left = (step.at_ms - view.start) * scale;
      const wide = step.ms * scale;
      if (left + wide < 0 || left > width) continue;
      const high = Math.max(1.5, Math.min(1, Math.max(...this.#shares(step))) * (kHeight - 2));
      context.fillStyle = colours[step.bound] ?? colours.neither;
      context.fillRect(left, kHeight - 1 - high, Math.max(0.8, wide - (wide > 3 ? 0.75 : 0)), high);
    }
  }

  // Of the bandwidth, of the arithmetic.
  #shares({ gbytes, gops, ms: took }) {
    const seconds = Math.max(took, 1e-3) / 1000;
    return [gbytes / seconds / this.#machine.read_gb_s, gops / seconds / this.#machine.int8_gops];
  }

  #words_at(offset_x) {
    if (!this.#view) return '';
    const at_ms = this.#view.start + (offset_x / this.canvas.clientWidth) * (this.#view.end - this.#view.start);
    const step = this.#steps.findLast((one) => one.at_ms <= at_ms);
    if (!step || at_ms > step.at_ms + Math.max(step.ms, 60)) return 'No step at that moment.';
    const [bandwidth, arithmetic] = this.#shares(step);
    const draft = step.draft_tokens ? `, ${plural(step.draft_tokens, 'draft token')}` : '';
    return `Step ${count(step.n)}: ${ms(step.ms)} for ${plural(step.runs, 'run')}, ${plural(step.prompt_tokens, 'prompt token')}, `
      + `${plural(step.stream_tokens, 'answer token')}${draft}; read ${rate(step.gbytes * 1000)} MB, `
      + `${percent(bandwidth)} of the bandwidth and ${percent(arithmetic)} of the arithmetic.`;
  }
}
