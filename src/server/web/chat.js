// The conversation that is open: sends it, streams its answers, goes from branch to branch, keeps what was said.

import { ApiError, cancel, get, stream_again, stream_chat } from './api.js';
import { Attachments } from './attachments.js';
import { Conversation } from './conversation.js';
import { by_id, make, set_text } from './dom.js';
import { Library } from './library.js';
import { Options } from './options.js';
import { Prediction } from './prediction.js';
import { report_of_request } from './report.js';
import { Store } from './store.js';
import { StreamedAnswer } from './streamed_answer.js';
import { Turn } from './turns.js';

const kSuggestions = ['What is a KV cache?', 'Tell me a short story about a fox.', 'Why is prefill faster than decode?'];
const kOpen = 'quire.open';  // of this tab: the conversation that a reload shows again
const kMostSaid = 4000;      // characters that are read out at once
const kTries = 5;            // to go on where the connection was lost

export class Chat {
  #conversation = new Conversation();
  #running = new Map();  // answers on their way, also of conversations that are not open: by node id, {abort, turn, conversation}
  #deleted = new Set();  // ids of conversations that are not kept any more
  #shown = [];           // turns, in order
  #model = '';
  #store = new Store();
  #options = new Options();
  #attachments = new Attachments();
  #field = by_id('message');
  #log = by_id('log');
  #turns = by_id('turns');
  #prediction = new Prediction(by_id('prediction'), () => this.#typed_conversation());
  #library = new Library(this.#store, {
    current: () => this.#conversation.id,
    on_open: (id) => this.open(id),
    on_changed: (id, changed) => this.#library_changed(id, changed),
  });

  // on_activity: told when a request starts or ends. engine_has_queue(): others wait for the engine now.
  constructor({ on_activity, engine_has_queue }) {
    this.on_activity = on_activity;
    this.engine_has_queue = engine_has_queue;
    by_id('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#field.addEventListener('keydown', (event) => this.#key_in_field(event));
    this.#field.addEventListener('input', () => {
      this.#fit_field();
      this.#prediction.typed();
    });
    by_id('stop').addEventListener('click', () => this.stop());
    by_id('new-conversation').addEventListener('click', () => this.restart());
    by_id('suggestions').append(...kSuggestions.map((text) => {
      const button = make('button', '', text);
      button.type = 'button';
      button.addEventListener('click', () => this.#send(text));
      return make('li', '', button);
    }));
    const open = session_value(kOpen);
    if (open) this.open(open, { quietly: true });
  }

  set model(id) {
    this.#model = id;
  }

  // The conversation as the server should see it, with the system message; null when nothing was said.
  conversation() {
    const messages = this.#conversation.messages();
    return messages.length ? this.#with_system(messages) : null;
  }

  get busy() {
    return this.#current_run() !== undefined;
  }

  stop() {
    const run = this.#current_run();
    if (run) end_run(run);
  }

  show_library() {
    this.#library.open();
  }

  // An answer that is on its way goes on: the conversation is in the library.
  restart() {
    this.#show_conversation(new Conversation());
    set_text(by_id('announce'), 'A new conversation.');
    this.#field.focus();
  }

  async open(id, { quietly = false } = {}) {
    const running = [...this.#running.values()].find(({ conversation }) => conversation.id === id);
    let conversation = running?.conversation ?? null;
    try {
      conversation ??= await this.#store.load(id);
    } catch (error) {
      console.error(error);
    }
    if (!conversation || (quietly && !this.#conversation.empty)) return;
    this.#options.system = conversation.system;
    this.#show_conversation(conversation);
    if (quietly) return;
    set_text(by_id('announce'), `Conversation “${conversation.title}”.`);
    this.#field.focus();
  }

  edit_last() {
    this.#shown.findLast(({ node }) => node.role === 'user')?.edit();
  }

  #library_changed(id, changed) {
    const running = [...this.#running.values()].filter(({ conversation }) => conversation.id === id);
    const open = this.#conversation.id === id;
    if (changed) {
      for (const conversation of [...running.map((run) => run.conversation), ...(open ? [this.#conversation] : [])]) conversation.name = changed.name;
      return;
    }
    this.#deleted.add(id);
    running.forEach(end_run);
    if (open) this.#show_conversation(new Conversation());
  }

  #show_conversation(conversation) {
    this.#conversation = conversation;
    session_keep(kOpen, conversation.empty ? null : conversation.id);
    this.#prediction.clear();
    this.#show_path();
    this.#log.scrollTop = this.#log.scrollHeight;
  }

  // Builds what is not there yet: turns that stay keep their folds and selections.
  #show_path() {
    const path = this.#conversation.path();
    by_id('title-page').hidden = path.length > 0;
    const kept = new Map(this.#shown.map((turn) => [turn.node, turn]));
    for (const { turn } of this.#running.values()) kept.set(turn.node, turn);
    this.#shown = path.map((node) => kept.get(node) ?? this.#left_turn(node));
    this.#turns.replaceChildren(...this.#shown.map(({ element }) => element));
    for (const turn of this.#shown) {
      if (!this.#running.has(turn.node.id)) turn.show(this.#conversation.siblings(turn.node));
    }
    this.#show_streaming();
  }

  // Of a message that was kept. An answer that was on its way when the page was left may still be.
  #left_turn(node) {
    const turn = this.#new_turn(node);
    if (node.pending && node.stream) this.#resume(turn);
    else if (node.pending) note_left(node);
    return turn;
  }

  #resume(turn) {
    const run = { abort: new AbortController(), conversation: this.#conversation, turn };
    this.#running.set(turn.node.id, run);
    turn.view.show(turn.node.content);
    this.#follow_stream(run, () => chunks_again(run));
  }

  #new_turn(node) {
    const conversation = this.#conversation;
    return new Turn(node, conversation.siblings(node), {
      on_edit: (edited, text) => this.#edit(edited, text),
      on_again: (answer) => this.#again(answer),
      on_choose: (other, label) => this.#choose(other, label),
      on_results: (answer, results) => this.#go_on(answer, results),
      is_answered: (answer) => conversation.path().some(({ parent }) => parent === answer.id),
      is_branch: (answer) => conversation.siblings(conversation.node(answer.parent) ?? answer).length > 1,
    });
  }

  #choose(node, label) {
    const what = { user: 'Message', tool: 'Result', assistant: 'Answer' }[node.role];
    this.#conversation.choose(node);
    this.#show_path();
    this.#keep(this.#conversation);
    const buttons = this.#turns.querySelectorAll(`[data-node="${node.id}"] .branches button`);
    const same = buttons[label === 'Next' ? 1 : 0];
    (same?.disabled ? buttons[label === 'Next' ? 0 : 1] : same)?.focus();
    const siblings = this.#conversation.siblings(node);
    set_text(by_id('announce'), `${what} ${siblings.indexOf(node) + 1} of ${siblings.length}.`);
  }

  #current_run() {
    return [...this.#running.values()].find(({ conversation }) => conversation === this.#conversation);
  }

  #with_system(messages) {
    return this.#options.system ? [{ role: 'system', content: this.#options.system }, ...messages] : messages;
  }

  #typed_conversation() {
    const content = this.#field.value.trim();
    if (!content || this.busy || this.engine_has_queue()) return null;
    const typed = new Conversation();
    const [message] = (typed.add(null, 'user', { content, files: this.#attachments.files }), typed.messages());
    return this.#with_system([...this.#conversation.messages(), message]);
  }

  #key_in_field(event) {
    if (event.isComposing) return;
    if (event.key === 'ArrowUp' && !this.#field.value && !this.busy) {
      event.preventDefault();
      this.edit_last();
    }
    if (event.key !== 'Enter' || event.shiftKey) return;
    event.preventDefault();
    this.#submit();
  }

  #submit() {
    const text = this.#field.value.trim();
    if ((!text && !this.#attachments.files.length) || this.busy) return;
    if (this.#send(text)) {
      this.#field.value = '';
      this.#fit_field();
    }
  }

  // False when the options are not usable.
  #send(text) {
    if (this.busy) return false;
    const options = this.#options.read();
    if (!options) return false;
    const files = this.#attachments.take_all();
    const asked = this.#conversation.add(this.#conversation.leaf, 'user', files.length ? { content: text, files } : { content: text });
    this.#answer(asked, options);
    return true;
  }

  #edit(node, text) {
    const options = this.busy ? null : this.#options.read();
    if (!options) return false;
    const files = node.files ? { files: node.files } : {};
    this.#answer(this.#conversation.add(node.parent, 'user', { content: text, ...files }), options);
    return true;
  }

  // What the tools said, which the model has asked for.
  #go_on(answer, results) {
    const options = this.busy ? null : this.#options.read();
    if (!options) return;
    if (options.tool_choice === 'required') delete options.tool_choice;  // the call that was wanted is made
    const content = results.map(({ name, content: said }) => (results.length > 1 ? `${name}: ${said}` : said)).join('\n\n');
    this.#answer(this.#conversation.add(answer.id, 'tool', { content, results }), options);
  }

  // Another answer beside this one, or in its place if it is none.
  #again(node) {
    const options = this.busy ? null : this.#options.read();
    if (!options) return;
    const asked = this.#conversation.node(node.parent);
    if (!node.content && !node.calls) this.#conversation.remove(node);
    this.#answer(asked, options);
  }

  async #answer(asked, options) {
    const conversation = this.#conversation;
    conversation.system = this.#options.system;
    const messages = this.#with_system(conversation.messages(asked.id));
    const node = conversation.add(asked.id, 'assistant', { model: this.#model, pending: true });
    const run = { abort: new AbortController(), conversation, turn: this.#new_turn(node) };
    this.#running.set(node.id, run);
    this.#prediction.clear();
    this.#show_path();
    session_keep(kOpen, conversation.id);
    this.#keep(conversation);
    const body = { model: this.#model, messages, stream: true, stream_options: { include_usage: true }, ...options, quire: { report: true, resume: true } };
    await this.#follow_stream(run, () => stream_chat(body, run.abort.signal));
  }

  async #follow_stream(run, open) {
    const { abort, conversation, turn } = run;
    const { node } = turn;
    const answer = new StreamedAnswer(turn, {
      on_shown: () => this.#follow(),
      on_keep: () => this.#keep(conversation),
    });
    this.#follow(true);
    this.#say(conversation, 'The answer is being written.');
    this.on_activity();
    try {
      await read_stream(run, answer, open);
      answer.finish();
      this.#say(conversation, said_of(node));
    } catch (error) {
      const id = node.stream;
      answer.finish();
      if (error.status === 404 || error.status === 410) note_left(node);  // the server has forgotten it
      else if (abort.signal.aborted) await this.#note_stopped(conversation, node, id);
      else this.#note_error(conversation, node, error);
    }
    this.#running.delete(node.id);
    turn.show(conversation.siblings(node));
    if (conversation === this.#conversation) this.#show_streaming();
    this.#keep(conversation);
    this.#follow();
    this.on_activity();
  }

  async #note_stopped(conversation, node, id) {
    node.note = node.content ? 'Stopped.' : 'Stopped before the first token.';
    this.#say(conversation, node.note);
    try {
      const request = (await get('requests')).requests.find((other) => other.id === id);
      if (request) node.report = report_of_request(request);
    } catch { /* the figures of a stopped answer can be done without */ }
  }

  #note_error(conversation, node, error) {
    if (!(error instanceof ApiError)) console.error(error);
    node.error = error instanceof ApiError ? error.message : 'The answer could not be read.';
    this.#say(conversation, '');
  }

  #say(conversation, text) {
    if (conversation === this.#conversation) set_text(by_id('announce'), text);
  }

  async #keep(conversation) {
    if (this.#deleted.has(conversation.id)) return;
    conversation.changed = Date.now();
    try {
      await this.#store.save(conversation);
      set_text(by_id('keep-error'), '');
    } catch (error) {
      set_text(by_id('keep-error'), error.message);
    }
  }

  #show_streaming() {
    const streaming = this.busy;
    const had_focus = [by_id('stop'), by_id('send')].includes(document.activeElement);
    by_id('send').hidden = streaming;
    by_id('stop').hidden = !streaming;
    if (had_focus) (streaming ? by_id('stop') : this.#field).focus();
  }

  // Keeps the end in sight, unless the reader has scrolled away from it.
  #follow(always = false) {
    const log = this.#log;
    if (always || log.scrollHeight - log.scrollTop - log.clientHeight < 140) log.scrollTop = log.scrollHeight;
  }

  #fit_field() {
    this.#field.style.height = 'auto';
    this.#field.style.height = `${this.#field.scrollHeight + 2}px`;
  }
}

// What is read out of an answer that has ended.
function said_of(node) {
  const calls = (node.calls ?? []).map(({ name }) => `It calls ${name}.`).join(' ');
  return [node.content.slice(0, kMostSaid), calls].filter(Boolean).join(' ') || 'The answer is empty.';
}

// It would go on without a reader, so the server is told.
function end_run({ abort, turn: { node } }) {
  abort.abort();
  if (node.stream) cancel(node.stream).catch(() => {});
}

// Of an answer that nobody can go on with.
function note_left(node) {
  delete node.pending;
  delete node.stream;
  if (node.content) node.note = 'It breaks off here: the page was closed.';
  else node.error = 'The page was closed before the first token.';
}

// What was kept gives way to the stream, which begins anew.
async function* chunks_again({ abort, turn: { node } }) {
  let begun = false;
  for await (const chunk of stream_again(node.stream, abort.signal)) {
    if (!begun) {
      node.content = '';
      delete node.reasoning;
      delete node.calls;
    }
    begun = true;
    yield chunk;
  }
}

// To its end, also where the connection is lost on the way.
async function read_stream(run, answer, open) {
  for (let tries = 1; ; ++tries) {
    try {
      for await (const chunk of open()) answer.take(chunk);
      return;
    } catch (error) {
      const lost = error instanceof ApiError && error.status === 0;
      if (!lost || !run.turn.node.stream || run.abort.signal.aborted || tries === kTries) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, 400 * tries));
    open = () => chunks_again(run);
  }
}

function session_value(name) {
  try { return sessionStorage.getItem(name); } catch { return null; }
}

function session_keep(name, value) {
  try {
    if (value === null) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, value);
  } catch { /* a private window: a reload shows a new conversation */ }
}
