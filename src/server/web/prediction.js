// While a message is typed: what its first token would cost, and how much of the prompt is cached already.

import { lookup } from './api.js';
import { set_text } from './dom.js';
import { ms } from './format.js';
import { cache_words } from './report.js';

const kPauseMs = 450;  // of typing

export class Prediction {
  #timer = 0;
  #abort = null;

  // messages(): the conversation with what is typed, or null when there is nothing to ask or no time for it.
  constructor(element, messages) {
    this.element = element;
    this.messages = messages;
  }

  typed() {
    this.clear();
    this.#timer = setTimeout(() => this.#ask(), kPauseMs);
  }

  clear() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    set_text(this.element, '');
  }

  async #ask() {
    const messages = this.messages();
    if (!messages) return;
    const abort = this.#abort = new AbortController();
    try {
      const found = await lookup(messages, abort.signal);
      if (abort.signal.aborted) return;
      set_text(this.element, `Predicted first token ${ms(found.predicted_ttft_ms)}, ${cache_words(found)}`);
    } catch { /* a guess that cannot be had is not missed */ }
  }
}
