// One answer on its way: collects chunks, shows the text as fast as it can be read, not as it comes.

import { add_call_pieces } from './calls.js';
import { plural } from './format.js';
import { report_of_chunk } from './report.js';

const kShowMs = 40;    // between pictures of a growing answer: the machine may be computing it
const kKeepMs = 1000;  // between writes to the browser's store

export class StreamedAnswer {
  #timer = 0;
  #kept_at = 0;
  #last = {};  // the chunk with usage and report
  #limit_reached = false;

  // The turn's node takes what comes. on_shown, on_keep: after it has grown, and now and then.
  constructor(turn, { on_shown, on_keep }) {
    this.turn = turn;
    this.on_shown = on_shown;
    this.on_keep = on_keep;
    turn.element.classList.add('writing');
    turn.element.setAttribute('aria-busy', 'true');
  }

  take(chunk) {
    const { node } = this.turn;
    node.stream ??= chunk.id;
    const choice = chunk.choices?.[0];
    node.content += choice?.delta?.content ?? '';
    if (choice?.delta?.reasoning_content) node.reasoning = (node.reasoning ?? '') + choice.delta.reasoning_content;
    if (choice?.delta?.tool_calls) add_call_pieces(node, choice.delta.tool_calls);
    if (choice?.finish_reason === 'length') this.#limit_reached = true;
    if (chunk.usage) this.#last = chunk;
    this.#timer ||= setTimeout(() => this.#show(), kShowMs);
  }

  #show() {
    this.#timer = 0;
    const { node } = this.turn;
    this.turn.show_reasoning(node.reasoning);
    this.turn.view.show(node.content);
    this.turn.show_calls(node.calls);
    this.on_shown();
    if (performance.now() - this.#kept_at < kKeepMs) return;
    this.#kept_at = performance.now();
    this.on_keep();
  }

  // Nothing more comes.
  finish() {
    clearTimeout(this.#timer);
    const { node } = this.turn;
    this.turn.element.classList.remove('writing');
    this.turn.element.removeAttribute('aria-busy');
    delete node.pending;
    delete node.stream;
    if (this.#limit_reached) {
      const tokens = this.#last.usage?.completion_tokens;
      node.note = `It ends here: the limit of ${tokens ? plural(tokens, 'token') : 'tokens'} was reached.`;
    }
    if (this.#last.usage) node.report = report_of_chunk(this.#last);
  }
}
