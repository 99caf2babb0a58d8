// The page map as a table: who holds how many pages, and which. Filled only while it is open.

import { make } from './dom.js';
import { bytes, count, list, ranges, short_id } from './format.js';

const kColumns = [['Held by', ''], ['Pages', 'number'], ['Tokens', 'number'], ['Bytes', 'number'], ['Page numbers', '']];

export class PageTable {
  #group = null;

  constructor() {
    this.body = make('tbody');
    const head = make('tr', '', ...kColumns.map(([words, class_name]) => {
      const cell = make('th', class_name, words);
      cell.scope = 'col';
      return cell;
    }));
    const frame = make('div', 'table-frame', make('table', '', make('thead', '', head), this.body));
    frame.tabIndex = 0;
    frame.setAttribute('role', 'region');
    frame.setAttribute('aria-label', 'Pages by holder');
    this.element = make('details', '', make('summary', '', 'As a table'), frame);
    this.element.addEventListener('toggle', () => this.#fill());
  }

  show(group) {
    this.#group = group;
    this.#fill();
  }

  #fill() {
    if (!this.element.open || !this.#group) return;
    const rows = [...holders(this.#group)].map(([who, { pages, tokens }]) => make('tr', '',
      make('td', '', who),
      make('td', 'number', count(pages.length)),
      make('td', 'number', count(tokens)),
      make('td', 'number', bytes(pages.length * this.#group.page_bytes)),
      make('td', '', ranges(pages))));
    const free = this.#group.pages - this.#group.map.length;
    rows.push(make('tr', '', make('td', '', 'free'), make('td', 'number', count(free)), make('td', 'number', '–'),
      make('td', 'number', bytes(free * this.#group.page_bytes)), make('td', '', 'all others')));
    this.body.replaceChildren(...rows);
  }
}

function holders(group) {
  const found = new Map();  // who -> {pages, tokens}
  for (const page of [...group.map].sort((a, b) => a.page - b.page)) {
    const owners = page.requests.length ? list(page.requests.map(short_id)) : 'nobody by name';
    const who = page.own === false ? `other keys (${page.state})`
      : `${page.state === 'cached' ? 'nobody (cached)' : owners}${page.pinned ? ', pinned' : ''}`;
    if (!found.has(who)) found.set(who, { pages: [], tokens: 0 });
    found.get(who).pages.push(page.page);
    found.get(who).tokens += page.tokens;
  }
  return found;
}
