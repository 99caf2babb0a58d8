// KV pages: one map per layer group, the pins, and what happened to pages lately.

import { by_id, make, set_text } from './dom.js';
import { bytes, clock, count, percent, plural, ranges, short_id } from './format.js';
import { PageMap } from './page_map.js';

const kEventsShown = 14;
const kEventsKept = 240;

const kEventWords = {
  reserved: 'for', shared: 'with', copied: 'for', published: 'by', released: 'by', preempted: 'from',
};

export class PagesView {
  #maps = [];
  #events = [];  // oldest first
  #pins_shown = null;

  // conversation(): messages to pin, or null. pin and unpin: what the buttons do.
  constructor({ conversation, pin, unpin }) {
    this.conversation = conversation;
    this.pin = pin;
    this.unpin = unpin;
  }

  forget() {
    this.#events = [];
  }

  // The pages of this request stand out; null: all are equal.
  notice(request) {
    for (const map of this.#maps) map.notice(request);
  }

  show(kv) {
    const { groups, page_tokens, format, bytes_per_token, unused_share, shared_bytes } = kv;
    while (this.#maps.length > groups.length) this.#maps.pop().element.remove();
    while (this.#maps.length < groups.length) {
      this.#maps.push(new PageMap());
      by_id('maps').append(this.#maps.at(-1).element);
    }
    groups.forEach((group, i) => this.#maps[i].show(group, group.page_tokens, kv));
    set_text(by_id('pages-about'), `${page_tokens} tokens to a page, ${bytes(bytes_per_token)} a token in ${format}. `
      + `${bytes(shared_bytes)} shared; ${percent(unused_share)} of the held rows empty.${about_host(kv.host)}${about_disk(kv.disk)}${about_store(kv.remote)}`);
    this.#show_pins(kv.pins ?? []);
    this.#show_events(kv.events, groups.length);
  }

  #show_pins(pins) {
    const can_pin = this.conversation() !== null;
    const signature = JSON.stringify([pins.map(({ pin, tokens }) => [pin, tokens]), can_pin]);
    if (signature === this.#pins_shown) return;
    this.#pins_shown = signature;
    const items = pins.map(({ pin, tokens }) => make('li', '', `Pin ${pin} keeps ${plural(tokens, 'token')}`,
      action('Unpin', () => this.unpin(pin))));
    const parts = items.length ? [make('ul', '', ...items)] : [];
    if (can_pin) parts.push(action('Pin this conversation', () => this.pin(this.conversation())));
    by_id('pins').replaceChildren(...parts);
  }

  #show_events({ total, last }, groups) {
    const newest = this.#events.at(-1)?.n ?? -1;
    this.#events.push(...last.filter(({ n }) => n > newest));
    this.#events.splice(0, this.#events.length - kEventsKept);
    set_text(by_id('events-aside'), `${count(total)} since the start`);
    const lines = merged(this.#events).slice(-kEventsShown).reverse();
    const signature = lines.map(({ n, pages }) => `${n}.${pages.length}`).join(' ');
    if (signature === this.#events_shown) return;
    this.#events_shown = signature;
    by_id('events').replaceChildren(...lines.map((line) => event_element(line, groups)));
  }
  #events_shown = '';
}

const about_host = (host) => (host
  ? ` In host memory: ${plural(host.pages, 'page')}, ${bytes(host.used_bytes)} of ${bytes(host.capacity_bytes)}.` : '');
const about_disk = (disk) => (disk
  ? ` On the disk: ${plural(disk.pages, 'evicted page')}, ${bytes(disk.used_bytes)} of ${bytes(disk.capacity_bytes)}.` : '');

const about_store = (store) => (store
  ? ` Shared store: ${plural(store.sent_pages, 'page')} sent, ${plural(store.hit_pages, 'page')} fetched${store.readable ? '' : '; it does not answer'}.` : '');

function action(words, act) {
  const button = make('button', 'quiet', words);
  button.type = 'button';
  button.addEventListener('click', act);
  return button;
}

// Events of one kind, request and group that come together become one line: a prefill takes many pages at once.
function merged(events) {
  const lines = [];
  for (const event of events) {
    const together = lines.slice(-8).find((line) => line.kind === event.kind && line.request === event.request
      && line.group === event.group && event.at_ms - line.at_ms < 250);
    if (together) together.pages.push(event.page);
    else lines.push({ ...event, pages: [event.page] });
  }
  return lines;
}

function event_element({ at_ms, kind, request, group, pages }, groups) {
  const numbers = [...new Set(pages)].sort((a, b) => a - b);
  const where = `${numbers.length === 1 ? 'page' : 'pages'} ${ranges(numbers)}${groups > 1 ? ` of map ${group + 1}` : ''}`;
  const whom = request ? `, ${kEventWords[kind] ?? 'for'} ${short_id(request)}` : '';
  return make('li', '', make('time', '', clock(at_ms)), make('span', 'kind', kind), make('span', 'what', `${where}${whom}`));
}
