// The pages of one layer group as a grid of cells on a canvas. By pointer and by arrow keys each page tells about itself.

import { request_colour, theme_colour } from './colours.js';
import { canvas_context, make, set_text } from './dom.js';
import { bytes, count, list, ms, plural, short_id } from './format.js';
import { PageTable } from './page_table.js';

const kMaxHeight = 260;  // the cells shrink to fit into it, down to kMinCell
const kEdge = 2;         // room for the cursor's ring
const kMinCell = 6;
const kMaxCell = 18;

const kStates = [
  ['held', 'held by one'],
  ['shared', 'shared'],
  ['cached', 'cached'],
  ['pinned', 'pinned'],
  ['free', 'free'],
  ['in_host', 'in host memory'],  // neither these nor those after them are in the map: a copy is elsewhere
  ['on_disk', 'on the disk'],
];

// held, shared, cached or free; being pinned is a mark beside these.
export const kind_of = (page) => (!page ? 'free' : page.state === 'cached' ? 'cached' : page.shares > 1 ? 'shared' : 'held');

// A cached page fades from full (just used) over a minute to faint (ten minutes and more).
const freshness = (age_ms) => Math.max(0.3, 0.95 - 0.65 * (Math.log10(1 + age_ms / 1000) / Math.log10(601)));

export class PageMap {
  #pages = [];       // by page number; undefined: free
  #group = null;
  #page_tokens = 32;
  #cell = kMaxCell;
  #columns = 1;
  #cursor = null;    // a page number
  #by_keyboard = false;
  #counts = {};
  #noticed = null;   // a request id

  constructor() {
    this.title = make('h4', 'group-title');
    this.canvas = make('canvas', 'map');
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute('role', 'application');
    this.canvas.setAttribute('aria-roledescription', 'page map');
    this.frame = make('div', 'map-frame', this.canvas);
    this.readout = make('p', 'readout');
    this.readout.setAttribute('aria-live', 'polite');
    this.readout.dataset.hint = 'Point at a page, or go through them with the arrow keys.';
    this.legend = make('ul', 'legend');
    this.legend_items = new Map(kStates.map(([state, words]) => {
      const number = make('b');
      const size = make('span');
      const item = make('li', '', make('span', `swatch swatch-${state}`), make('span', '', number, ` ${words}`, size));
      this.legend.append(item);
      return [state, { item, number, size }];
    }));
    this.table = new PageTable();
    this.element = make('div', 'group', this.title, this.frame, this.legend, this.readout, this.table.element);

    this.canvas.addEventListener('pointermove', (event) => this.#point(this.#page_at(event), false));
    this.canvas.addEventListener('pointerdown', (event) => this.#point(this.#page_at(event), false));
    this.canvas.addEventListener('pointerleave', () => this.#point(null, false));
    this.canvas.addEventListener('blur', () => this.#point(null, true));
    this.canvas.addEventListener('focus', () => {
      if (this.canvas.matches(':focus-visible')) this.#point(this.#cursor ?? 0, true);
    });
    this.canvas.addEventListener('keydown', (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe(this.element);
    document.addEventListener('themechange', () => this.draw());
  }

  // tiers: `host` and `disk`, whether pages that leave memory go there.
  show(group, page_tokens, tiers) {
    this.legend_items.get('in_host').item.hidden = !tiers.host;
    this.legend_items.get('on_disk').item.hidden = !tiers.disk;
    this.#group = group;
    this.#page_tokens = page_tokens;
    this.#pages = new Array(group.pages);
    this.#counts = { held: 0, shared: 0, cached: 0, pinned: 0, free: group.pages, in_host: group.in_host, on_disk: group.on_disk };
    for (const page of group.map) {
      this.#pages[page.page] = page;
      ++this.#counts[kind_of(page)];
      --this.#counts.free;
      if (page.pinned) ++this.#counts.pinned;
    }
    this.#show_words();
    this.table.show(group);
    this.draw();
  }

  notice(request) {
    this.#noticed = request;
    this.draw();
  }

  get #has_states() { return this.#group.kind === 'states'; }

  #show_words() {
    const { layers, window, pages, page_bytes } = this.#group;
    const sight = window ? `the last ${count(window)} tokens` : 'everything';
    const title = this.#has_states ? 'Recurrent layers'
      : `${plural(layers, 'layer')} that ${layers === 1 ? 'sees' : 'see'} ${sight}`;
    const sizes = `${plural(pages, this.#has_states ? 'state' : 'page')} of ${bytes(page_bytes)}`;
    if (this.title.textContent !== `${title}, ${sizes}`) this.title.replaceChildren(title, make('span', '', `, ${sizes}`));
    for (const [state, { number, size }] of this.legend_items) {
      set_text(number, count(this.#counts[state]));
      set_text(size, this.#counts[state] ? `, ${bytes(this.#counts[state] * page_bytes)}` : '');
    }
    const { held, shared, cached, free } = this.#counts;
    this.canvas.setAttribute('aria-label',
      `Map of ${sizes} for ${title}: ${held} held by one request, ${shared} shared, ${cached} cached, ${free} free. `
      + 'Arrow keys go from page to page; a table follows.');
    if (this.#cursor !== null && !this.#by_keyboard) this.#tell();
  }

  // The largest cells with which all pages fit, or the smallest; of two sizes that do, the one that leaves least of the width.
  #layout(width) {
    const fits = [];
    for (let cell = kMaxCell; cell >= kMinCell && fits.length < 2; --cell) {
      const columns = Math.max(1, Math.floor(width / cell));
      const height = Math.ceil(this.#group.pages / columns) * cell;
      if (height <= kMaxHeight || cell === kMinCell) fits.push({ cell, columns, height, rest: width - columns * cell });
    }
    const best = fits.reduce((one, other) => (other.rest < one.rest ? other : one));
    this.#cell = best.cell;
    this.#columns = best.columns;
    return best.height;
  }

  draw() {
    const width = this.frame.clientWidth;
    if (!this.#group || !width) return;
    const height = this.#layout(width) + 2 * kEdge;
    const used_width = this.#columns * this.#cell + 2 * kEdge;
    this.canvas.style.width = `${used_width}px`;
    this.canvas.style.height = `${height}px`;
    const context = canvas_context(this.canvas, used_width, height);
    const [free, cached, ink, accent] = ['--free', '--cached', '--ink', '--accent'].map(theme_colour);
    const colours = { free, cached, ink, accent };
    for (let page = 0; page < this.#group.pages; ++page) this.#draw_cell(context, page, colours);
    if (this.#cursor !== null) this.#draw_cursor(context, colours);
  }

  #draw_cell(context, number, colours) {
    const gap = this.#cell >= 10 ? 2 : 1;
    const [x, y] = this.#corner(number);
    const size = this.#cell - gap;
    const page = this.#pages[number];
    context.fillStyle = colours.free;
    context.fillRect(x, y, size, size);
    if (page && this.#noticed && !page.requests.includes(this.#noticed)) context.globalAlpha = 0.2;
    else if (kind_of(page) === 'cached') context.globalAlpha = freshness(page.age_ms);
    if (kind_of(page) === 'cached') {
      context.fillStyle = colours.cached;
      context.fillRect(x, y, size, size);
    } else if (page) {
      this.#draw_held(context, page, x, y, size, colours);
    }
    context.globalAlpha = 1;
    if (page?.pinned) {
      const mark = Math.max(2, Math.round(size / 3));
      context.fillStyle = colours.ink;
      context.fillRect(x + (size - mark) / 2, y + (size - mark) / 2, mark, mark);
    }
  }

  // A page that is not full yet is filled from the bottom as far as its rows go.
  #draw_held(context, page, x, y, size, colours) {
    const owners = page.requests;
    const filled = Math.max(1, Math.round(size * Math.min(1, page.tokens / this.#page_tokens)));
    context.fillStyle = owners.length ? request_colour(owners[0]) : colours.cached;
    context.fillRect(x, y + size - filled, size, filled);
    if (page.shares < 2) return;
    if (owners.length > 1) {
      context.fillStyle = request_colour(owners[1]);
      context.beginPath();
      context.moveTo(x + size, y);
      context.lineTo(x + size, y + size);
      context.lineTo(x, y + size);
      context.fill();
    }
    const ring = size >= 9 ? 1.5 : 1;
    context.strokeStyle = colours.ink;
    context.lineWidth = ring;
    context.strokeRect(x + ring / 2, y + ring / 2, size - ring, size - ring);
  }

  #draw_cursor(context, colours) {
    const [x, y] = this.#corner(this.#cursor);
    const size = this.#cell - (this.#cell >= 10 ? 2 : 1);
    context.strokeStyle = colours.accent;
    context.lineWidth = 2;
    context.strokeRect(x - 1, y - 1, size + 2, size + 2);
  }

  #corner(number) {
    return [kEdge + (number % this.#columns) * this.#cell, kEdge + Math.floor(number / this.#columns) * this.#cell];
  }

  #page_at(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - kEdge) / this.#cell);
    const page = Math.floor((event.clientY - box.top - kEdge) / this.#cell) * this.#columns + column;
    return this.#group && column >= 0 && column < this.#columns && page >= 0 && page < this.#group.pages ? page : null;
  }

  #key(event) {
    if (!this.#group) return;
    const last = this.#group.pages - 1;
    const from = this.#cursor ?? 0;
    const to = {
      ArrowRight: from + 1, ArrowLeft: from - 1, ArrowDown: from + this.#columns, ArrowUp: from - this.#columns, Home: 0, End: last,
    }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    if (to < 0 || to > last) return;
    this.#point(to, true);
    const top = Math.floor(to / this.#columns) * this.#cell;
    if (top < this.frame.scrollTop) this.frame.scrollTop = top;
    this.frame.scrollTop = Math.max(this.frame.scrollTop, top + this.#cell - this.frame.clientHeight);
  }

  #point(page, by_keyboard) {
    if (page === this.#cursor && by_keyboard === this.#by_keyboard) return;
    this.#cursor = page;
    this.#by_keyboard = by_keyboard;
    this.readout.setAttribute('aria-live', by_keyboard ? 'polite' : 'off');
    this.#tell();
    this.draw();
  }

  #tell() {
    const words = this.#has_states ? state_words : page_words;
    set_text(this.readout, this.#cursor === null ? '' : words(this.#cursor, this.#pages[this.#cursor], this.#page_tokens));
  }
}

// What one sequence is after some of its tokens.
function state_words(number, state) {
  if (!state) return `The room of state ${number} is free.`;
  if (state.own === false) return `State ${number}: ${state.state}, of another key.`;
  const owners = state.requests.length ? ` by ${list(state.requests.map(short_id))}` : '';
  return `State ${number}: ${state.state}${state.state === 'held' ? owners : ''}${state.pinned ? ', pinned' : ''}; `
    + `${plural(state.shares, 'share')}; age ${ms(state.age_ms)}.`;
}

export function page_words(number, page, page_tokens) {
  if (!page) return `Page ${number} is free.`;
  if (page.own === false) return `Page ${number}: ${page.state}, of another key.`;
  const owners = page.requests.length ? ` by ${list(page.requests.map(short_id))}` : '';
  const first = page.index * page_tokens;
  const parts = [
    `Page ${number}: ${page.state}${page.state === 'held' ? owners : ''}${page.pinned ? ', pinned' : ''}`,
    `number ${page.index + 1} of its sequence, tokens ${count(first)} to ${count(first + Math.max(0, page.tokens - 1))}`,
    `${page.tokens} of ${page_tokens} rows filled`,
    plural(page.shares, 'share'),
    `age ${ms(page.age_ms)}`,
  ];
  return `${parts.join('; ')}.`;
}
