// A fold under a request that loads its passes when it is opened, and again while they grow.

import { make, set_text } from './dom.js';
import { steps_table } from './steps_table.js';

const kPauseMs = 1500;  // between two looks at a request that runs

export class StepsFold {
  #loaded = null;  // what the table shows: state and tokens
  #at = 0;
  #request = null;

  // load(id, choice) gives what GET /requests/ID/steps says.
  constructor(load) {
    this.load = load;
    this.problem = make('p');
    this.table = make('div');
    this.element = make('details', '', make('summary', '', 'Its steps'), this.problem, this.table);
    this.element.addEventListener('toggle', () => this.show(this.#request));
  }

  async show(request) {
    this.#request = request;
    const shown = `${request?.state} ${request?.answer_tokens} ${request?.chunks.length}`;
    const soon = request?.finished_ms == null && performance.now() - this.#at < kPauseMs;
    if (!request || !this.element.open || shown === this.#loaded || soon) return;
    this.#loaded = shown;
    this.#at = performance.now();
    try {
      this.table.replaceChildren(steps_table(await this.load(request.id, request.choice ?? 0)));
      set_text(this.problem, '');
    } catch (error) {
      set_text(this.problem, error.message);
    }
  }
}
