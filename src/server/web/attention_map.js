// Where the tokens of a request look, as a heat map on a canvas: a row for each token that was computed, a column for each
// that it may look at. By pointer and by arrow keys each row tells about itself.

import { theme_colour } from './colours.js';
import { canvas_context, make, set_text } from './dom.js';
import { count, percent, quoted } from './format.js';

const kMaxCell = 18;
const kLabelCell = 11;   // cells at least so high have their token beside them
const kLabelWidth = 84;
const kPhaseGap = 7;     // between the rows of the prompt and those of the answer
const kEdge = 2;         // room for the cursor's ring
const kTold = 4;         // of the tokens that a row looks at
const kFaint = 0.002;    // shares below leave no mark

// Small ones with a digit more: most are small.
const share_words = (share) => (share < 0.0995 ? `${(share * 100).toFixed(1)}\u2009%` : percent(share));

export class AttentionMap {
  #seen = null;
  #columns = 0;
  #cell = kMaxCell;
  #left = kEdge;
  #cursor = null;       // {row, column}
  #by_keyboard = false;

  constructor() {
    this.canvas = make('canvas', 'heat');
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute('role', 'application');
    this.canvas.setAttribute('aria-roledescription', 'attention map');
    this.canvas.setAttribute('aria-label', 'Where each token looks');
    this.frame = make('div', 'heat-frame', this.canvas);
    this.legend = make('ul', 'legend',
      make('li', '', make('span', 'swatch swatch-key-computed'), 'key of the row’s own pass'),
      make('li', '', make('span', 'swatch swatch-key-cached'), 'key from the cache'),
      make('li', '', 'the stronger, the larger its share'));
    this.readout = make('p', 'readout');
    this.readout.setAttribute('aria-live', 'polite');
    this.readout.dataset.hint = 'Point at a row, or go through them with the arrow keys.';
    this.element = make('div', 'heat-map', this.frame, this.legend, this.readout);

    for (const sign of ['pointermove', 'pointerdown']) {
      this.canvas.addEventListener(sign, (event) => this.#point(this.#cell_at(event), false));
    }
    this.canvas.addEventListener('pointerleave', () => this.#point(null, false));
    this.canvas.addEventListener('blur', () => this.#point(null, true));
    this.canvas.addEventListener('focus', () => {
      if (this.canvas.matches(':focus-visible')) this.#point(this.#cursor ?? { row: 0, column: 0 }, true);
    });
    this.canvas.addEventListener('keydown', (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe(this.frame);
    document.addEventListener('themechange', () => this.draw());
  }

  // Of GET /requests/ID/attention.
  show(seen) {
    this.#seen = seen;
    this.#columns = Math.ceil(seen.tokens.length / seen.cell_tokens);
    if (this.#cursor) this.#cursor = this.#within(this.#cursor);
    this.canvas.setAttribute('aria-label', `Where each token looks: layer ${seen.layer}, head ${seen.head}, `
      + `${count(seen.rows.length)} rows of up to ${count(this.#columns)} cells`);
    this.draw();
    this.#tell();
  }

  draw() {
    const width = this.frame.clientWidth;
    if (!this.#seen?.rows.length || !width) return;
    const roomy = Math.floor((width - kLabelWidth - 2 * kEdge) / this.#columns);
    this.#left = kEdge + (roomy >= kLabelCell ? kLabelWidth : 0);
    this.#cell = Math.min(kMaxCell, roomy >= kLabelCell ? roomy : (width - 2 * kEdge) / this.#columns);
    const used_width = Math.min(width, this.#left + this.#columns * this.#cell + kEdge);
    const height = Math.ceil(this.#top(this.#seen.rows.length) + kEdge);
    this.canvas.style.width = `${used_width}px`;
    this.canvas.style.height = `${height}px`;
    const context = canvas_context(this.canvas, used_width, height);
    const colours = { cached: theme_colour('--key-cached'), computed: theme_colour('--key-computed') };
    this.#seen.rows.forEach((row, number) => this.#draw_row(context, row, number, colours));
    this.#draw_phases(context, used_width);
    if (this.#cursor) this.#draw_cursor(context);
  }

  // Rows of the answer come after a gap.
  #top(number) {
    const prompt_rows = this.#prompt_rows();
    const gap = prompt_rows > 0 && number >= prompt_rows && prompt_rows < this.#seen.rows.length ? kPhaseGap : 0;
    return kEdge + number * this.#cell + gap;
  }

  #prompt_rows() {
    const { rows, prompt_tokens } = this.#seen;
    const first = rows.findIndex(({ position }) => position >= prompt_tokens);
    return first < 0 ? rows.length : first;
  }

  // The first column that the row sees, and the first whose keys its pass computed; one with both counts as computed.
  #bounds({ position, pass }) {
    const { window, passes, cell_tokens } = this.#seen;
    const first = Math.floor((window ? Math.max(0, position + 1 - window) : 0) / cell_tokens);
    return { first, fresh: Math.max(first, Math.floor(passes[pass].begin / cell_tokens)) };
  }

  #draw_row(context, row, number, { cached, computed }) {
    const ratio = window.devicePixelRatio || 1;
    const snap = (value) => Math.round(value * ratio) / ratio;
    const gap = this.#cell >= 5 ? 1 / ratio : 0;
    const [top, bottom] = [snap(this.#top(number)), snap(this.#top(number) + this.#cell)];
    const x = (column) => snap(this.#left + column * this.#cell);
    const { first, fresh } = this.#bounds(row);
    context.globalAlpha = 0.55;
    context.fillStyle = theme_colour('--free');
    context.fillRect(x(first), top, x(row.shares.length) - x(first) - gap, bottom - top - gap);
    for (let column = first; column < row.shares.length; ++column) {
      if (row.shares[column] < kFaint) continue;
      // Small shares are most of them, and the eye is no ruler: the root makes them visible.
      context.globalAlpha = Math.min(1, Math.sqrt(row.shares[column]));
      context.fillStyle = column < fresh ? cached : computed;
      context.fillRect(x(column), top, x(column + 1) - x(column) - gap, bottom - top - gap);
    }
    context.globalAlpha = 1;
    // Where the cache ends, so that no colour is needed to see it; among cells of a few dots it would hide the one key of decode.
    if (fresh > first && (row.shares.length - fresh) * this.#cell >= 6) {
      context.fillStyle = theme_colour('--edge');
      context.fillRect(x(fresh) - gap, top, 1 / ratio, bottom - top);
    }
    if (this.#left > kLabelWidth) this.#draw_label(context, row, top);
  }

  #draw_label(context, { position, tokens }, top) {
    context.fillStyle = theme_colour('--soft');
    context.font = '11px system-ui, sans-serif';
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    context.fillText(this.#text(position, tokens, 12), this.#left - 7, top + this.#cell / 2, kLabelWidth - 8);
  }

  #draw_phases(context, width) {
    const prompt_rows = this.#prompt_rows();
    if (prompt_rows === 0 || prompt_rows === this.#seen.rows.length) return;
    context.fillStyle = theme_colour('--edge');
    context.fillRect(0, Math.round(this.#top(prompt_rows) - kPhaseGap / 2 - 0.5), width, 1);
  }

  #draw_cursor(context) {
    const { row, column } = this.#cursor;
    const top = this.#top(row);
    context.strokeStyle = theme_colour('--ink');
    context.lineWidth = 1;
    const right = this.#left + this.#seen.rows[row].shares.length * this.#cell;
    context.strokeRect(this.#left - 1.5, top - 1.5, right - this.#left + 2, this.#cell + 2);
    context.strokeStyle = theme_colour('--accent');
    context.lineWidth = 2;
    context.strokeRect(this.#left + column * this.#cell - 1, top - 1, this.#cell + 1, this.#cell + 1);
  }

  #within({ row, column }) {
    const to = Math.min(Math.max(row, 0), this.#seen.rows.length - 1);
    return { row: to, column: Math.min(Math.max(column, 0), this.#seen.rows[to].shares.length - 1) };
  }

  #cell_at(event) {
    if (!this.#seen) return null;
    const box = this.canvas.getBoundingClientRect();
    const y = event.clientY - box.top;
    const row = this.#seen.rows.findIndex((_, number) => y >= this.#top(number) && y < this.#top(number) + this.#cell);
    if (row < 0) return null;
    return this.#within({ row, column: Math.floor((event.clientX - box.left - this.#left) / this.#cell) });
  }

  #key(event) {
    if (!this.#seen || event.ctrlKey || event.metaKey || event.altKey) return;
    const { row, column } = this.#cursor ?? { row: 0, column: 0 };
    const to = {
      ArrowUp: { row: row - 1, column }, ArrowDown: { row: row + 1, column },
      ArrowLeft: { row, column: column - 1 }, ArrowRight: { row, column: column + 1 },
      Home: { row, column: 0 }, End: { row, column: Infinity },
    }[event.key];
    if (!to) return;
    event.preventDefault();
    this.#point(this.#within(to), true);
    const top = this.#top(this.#cursor.row);
    if (top < this.frame.scrollTop) this.frame.scrollTop = top - kEdge;
    this.frame.scrollTop = Math.max(this.frame.scrollTop, top + this.#cell + kEdge - this.frame.clientHeight);
  }

  #point(cursor, by_keyboard) {
    if (cursor?.row === this.#cursor?.row && cursor?.column === this.#cursor?.column && by_keyboard === this.#by_keyboard) return;
    this.#cursor = this.#seen ? cursor : null;
    this.#by_keyboard = by_keyboard;
    this.readout.setAttribute('aria-live', by_keyboard ? 'polite' : 'off');
    this.#tell();
    this.draw();
  }

  #tell() {
    set_text(this.readout, this.#cursor === null ? '' : this.#words(this.#cursor));
  }

  // “fox” looks at: “The” 41 %, “quick” 20 %, ...
  #words({ row: number, column }) {
    const row = this.#seen.rows[number];
    const { cell_tokens } = this.#seen;
    const { fresh } = this.#bounds(row);
    const most = row.shares.map((share, at) => ({ share, at })).sort((a, b) => b.share - a.share).slice(0, kTold);
    const looks = most.filter(({ share }) => share > 0).map(({ share, at }) => `${this.#name(at * cell_tokens)} ${share_words(share)}`);
    const place = `Token ${count(row.position)}${row.tokens > 1 ? `–${count(row.position + row.tokens - 1)}` : ''}`;
    return `${place}, ${quoted(this.#text(row.position, row.tokens, 24))}, looks at: ${looks.join(', ')}. `
      + `Here ${this.#name(column * cell_tokens)} has ${share_words(row.shares[column])}, `
      + `${column < fresh ? 'a key from the cache' : 'a key of its own pass'}.`;
  }

  #name(position) {
    return quoted(this.#text(position, this.#seen.cell_tokens, 16));
  }

  #text(position, tokens, most) {
    const text = [...this.#seen.tokens.slice(position, position + tokens).join('').replaceAll('\n', '↵')];
    return text.length > most ? `${text.slice(0, most - 1).join('')}…` : text.join('');
  }
}
