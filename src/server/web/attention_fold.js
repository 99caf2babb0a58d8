// A fold under a request that shows where one of its heads looks. It asks the server only while it is open.

import { AttentionMap } from './attention_map.js';
import { make, set_text } from './dom.js';
import { count, list, plural } from './format.js';

const kPauseMs = 2000;  // between two looks at a request that grows: each computes its tokens once more

const last_choice = { layer: 0, head: 0 };  // the next fold begins with it

export class AttentionFold {
  #request = null;
  #shown = '';       // what was asked for last: head and tokens
  #at = -Infinity;   // when the last look ended
  #asking = null;    // an AbortController
  #hopeless = false; // the server said that it cannot be shown, and more tokens would not change that

  // load(id, choice, {layer, head}, signal) gives what GET /requests/ID/attention says.
  constructor(load) {
    this.load = load;
    this.layer = number_field('Layer', last_choice.layer);
    this.head = number_field('Head', last_choice.head);
    this.problem = make('p', 'error');
    this.problem.setAttribute('role', 'status');
    this.about = make('p', 'about-head');
    this.map = new AttentionMap();
    this.map.element.hidden = true;
    const fields = make('div', 'head-fields', this.layer.element, this.head.element);
    this.element = make('details', 'attention', make('summary', '', 'Where a head looks'), fields, this.problem, this.about, this.map.element);
    this.element.addEventListener('toggle', () => {
      if (!this.element.open) this.#asking?.abort();
      this.show(this.#request);
    });
    for (const { input } of [this.layer, this.head]) {
      input.addEventListener('input', () => {
        this.#hopeless = false;
        this.#at = -Infinity;
        this.#asking?.abort();
        this.show(this.#request);
      });
    }
  }

  show(request) {
    this.#request = request;
    if (!request || !this.element.open) return;
    const [layer, head] = [this.layer.value(), this.head.value()];
    if (layer === null || head === null) return;  // a field is being written
    const shown = `${layer} ${head} ${request.state} ${request.answer_tokens} ${request.chunks.length}`;
    const soon = performance.now() - this.#at < kPauseMs;
    if (shown === this.#shown || this.#hopeless || this.#asking || soon) return;
    this.#ask(shown, { layer, head });
  }

  async #ask(shown, place) {
    const asking = new AbortController();
    this.#asking = asking;
    this.element.setAttribute('aria-busy', 'true');
    try {
      const seen = await this.load(this.#request.id, this.#request.choice ?? 0, place, asking.signal);
      this.#shown = shown;
      Object.assign(last_choice, place);
      this.layer.limit(seen.layers);
      this.head.limit(seen.heads);
      set_text(this.about, about_words(seen));
      set_text(this.problem, '');
      this.map.element.hidden = false;
      this.map.show(seen);
    } catch (error) {
      if (!asking.signal.aborted) this.#tell(error);
    }
    this.#asking = null;
    this.#at = asking.signal.aborted ? -Infinity : performance.now();
    this.element.removeAttribute('aria-busy');
    if (asking.signal.aborted) this.show(this.#request);  // another head was chosen meanwhile
    else this.#look_again();
  }

  // What grew while the server computed, or is not there yet, is asked for after the pause, whether or not anything else happens.
  #look_again() {
    setTimeout(() => {
      if (this.element.isConnected && !document.hidden) this.show(this.#request);
    }, kPauseMs + 50);
  }

  #tell(error) {
    set_text(this.problem, error.message);
    this.#hopeless = error.status === 400 || error.status === 403 || error.status === 404;
  }
}

function number_field(name, value) {
  const input = make('input');
  input.type = 'number';
  input.min = 0;
  input.step = 1;
  input.value = value;
  input.required = true;
  const last = make('span', 'hint');
  return {
    input,
    element: make('label', '', `${name} `, input, last),
    value: () => (input.checkValidity() ? input.valueAsNumber : null),
    limit(number) {
      input.max = number - 1;
      set_text(last, ` 0 to ${number - 1}`);
    },
  };
}

function about_words(seen) {
  const { kv_head, kv_heads, sharing, window, cached_tokens, cell_tokens, sinks } = seen;
  const words = [`It reads KV head ${kv_head} of ${kv_heads}, `
    + (sharing.length > 1 ? `which heads ${list(sharing.map(String))} share.` : 'which no other head reads.')];
  if (window) words.push(`The layer sees a window of ${plural(window, 'token')}.`);
  if (cached_tokens) words.push(`The first ${plural(cached_tokens, 'token')} came from the cache: nothing of theirs was computed, and they have no row.`);
  if (cell_tokens > 1) words.push(`A cell is ${count(cell_tokens)} tokens: their shares are added from left to right and averaged from top to bottom.`);
  if (sinks) words.push('A part of every row goes to the head’s sink.');
  return words.join(' ');
}
