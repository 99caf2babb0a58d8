// The conversation: sends it, streams the answer, keeps what was said.

import { ApiError, get, stream_chat } from './api.js';
import { TextView } from './answer_text.js';
import { by_id, make, set_text } from './dom.js';
import { plural } from './format.js';
import { Options } from './options.js';
import { Prediction } from './prediction.js';
import { report_element, report_of_chunk, report_of_request } from './report.js';

const kSuggestions = ['What is a KV cache?', 'Tell me a short story about a fox.', 'Why is prefill faster than decode?'];

const kMostSaid = 4000;  // characters that are read out at once
const kShowMs = 40;  // between pictures of a growing answer: the machine may be computing it

export class Chat {
  #messages = [];  // what was said and answered; without the system message
  #model = '';
  #abort = null;   // of the answer that streams now
  #options = new Options();
  #field = by_id('message');
  #log = by_id('log');
  #turns = by_id('turns');
  #prediction = new Prediction(by_id('prediction'), () => this.#typed_conversation());

  // on_activity: told when a request starts or ends. engine_has_queue(): others wait for the engine now.
  constructor({ on_activity, engine_has_queue }) {
    this.on_activity = on_activity;
    this.engine_has_queue = engine_has_queue;
    by_id('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#field.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#submit();
    });
    this.#field.addEventListener('input', () => {
      this.#fit_field();
      this.#prediction.typed();
    });
    document.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && this.#abort && !by_id('key-dialog').open) this.stop();
    });
    by_id('stop').addEventListener('click', () => this.stop());
    by_id('new-conversation').addEventListener('click', () => this.restart());
    by_id('suggestions').append(...kSuggestions.map((text) => {
      const button = make('button', '', text);
      button.type = 'button';
      button.addEventListener('click', () => this.#send(text));
      return make('li', '', button);
    }));
  }

  set model(id) {
    this.#model = id;
  }

  // The conversation as the server should see it, with the system message; null when nothing was said.
  conversation() {
    return this.#messages.length ? this.#with_system(this.#messages) : null;
  }

  stop() {
    this.#abort?.abort();
  }

  restart() {
    this.stop();
    this.#messages = [];
    this.#turns.replaceChildren();
    by_id('title-page').hidden = false;
    this.#prediction.clear();
    set_text(by_id('announce'), 'A new conversation.');
    this.#field.focus();
  }

  #with_system(messages) {
    return this.#options.system ? [{ role: 'system', content: this.#options.system }, ...messages] : messages;
  }

  #typed_conversation() {
    const content = this.#field.value.trim();
    if (!content || this.#abort || this.engine_has_queue()) return null;
    return this.#with_system([...this.#messages, { role: 'user', content }]);
  }

  #submit() {
    const text = this.#field.value.trim();
    if (!text || this.#abort) return;
    if (this.#send(text)) {
      this.#field.value = '';
      this.#fit_field();
    }
  }

  // False when the options are not usable.
  #send(text) {
    const options = this.#options.read();
    if (!options) return false;
    this.#prediction.clear();
    by_id('title-page').hidden = true;
    const asked = add_turn(this.#turns, 'user', 'You');
    new TextView(asked.text).show(text);
    this.#messages.push({ role: 'user', content: text });
    this.#answer(options, () => {
      asked.element.remove();
      this.#send(text);
    });
    return true;
  }

  async #answer(options, try_again) {
    const turn = add_turn(this.#turns, 'assistant', this.#model || 'Answer');
    const answer = new StreamedAnswer(turn, () => this.#follow());
    const messages = this.#messages;
    const abort = this.#abort = new AbortController();
    this.#show_streaming(true);
    this.#follow(true);
    set_text(by_id('announce'), 'The answer is being written.');
    this.on_activity();
    try {
      const body = {
        model: this.#model,
        messages: this.#with_system(messages),
        stream: true,
        stream_options: { include_usage: true },
        ...options,
        quire: { report: true },
      };
      for await (const chunk of stream_chat(body, abort.signal)) answer.take(chunk);
      answer.finish();
      set_text(by_id('announce'), answer.content.slice(0, kMostSaid) || 'The answer is empty.');
    } catch (error) {
      answer.finish();
      if (error.name === 'AbortError') this.#show_stopped(turn, answer);
      else this.#show_error(turn, error, answer.content ? null : try_again);
    }
    // What was never answered is not part of the conversation.
    if (answer.content) messages.push({ role: 'assistant', content: answer.content });
    else messages.pop();
    if (this.#abort === abort) {
      this.#abort = null;
      this.#show_streaming(false);
    }
    this.#follow();
    this.on_activity();
  }

  async #show_stopped(turn, answer) {
    const note = answer.content ? 'Stopped.' : 'Stopped before the first token.';
    turn.element.append(make('p', 'note', note));
    set_text(by_id('announce'), note);
    try {
      const request = (await get('requests')).requests.find(({ id }) => id === answer.id);
      if (request) turn.element.append(report_element(report_of_request(request)));
      this.#follow();
    } catch { /* the figures of a stopped answer can be done without */ }
  }

  #show_error(turn, error, try_again) {
    if (!(error instanceof ApiError)) console.error(error);
    const text = error instanceof ApiError ? error.message : 'The answer could not be read.';
    const line = make('p', 'error', text);
    line.setAttribute('role', 'alert');
    if (try_again) {
      const button = make('button', 'quiet', 'Try again');
      button.type = 'button';
      button.addEventListener('click', () => {
        if (this.#abort) return;
        turn.element.remove();
        try_again();
      });
      line.append(' ', button);
    }
    turn.element.append(line);
    set_text(by_id('announce'), '');
  }

  #show_streaming(streaming) {
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

function add_turn(turns, role, speaker) {
  const text = make('div', 'text');
  const element = make('article', `turn ${role}`, make('h3', 'speaker', speaker), text);
  turns.append(element);
  return { element, text };
}

// One answer on its way: collects chunks, shows the text as fast as it can be read, not as it comes.
class StreamedAnswer {
  id = null;
  content = '';
  reasoning = '';
  #view;
  #reasoning_text = null;  // made when the first word of it comes
  #timer = 0;
  #last = {};  // the chunk with usage and report
  #limit_reached = false;

  constructor(turn, on_shown) {
    this.turn = turn;
    this.on_shown = on_shown;
    this.#view = new TextView(turn.text);
    turn.element.classList.add('writing');
    turn.element.setAttribute('aria-busy', 'true');
  }

  take(chunk) {
    this.id ??= chunk.id;
    const choice = chunk.choices?.[0];
    this.content += choice?.delta?.content ?? '';
    this.reasoning += choice?.delta?.reasoning_content ?? '';
    if (choice?.finish_reason === 'length') this.#limit_reached = true;
    if (chunk.usage) this.#last = chunk;
    this.#timer ||= setTimeout(() => {
      this.#timer = 0;
      this.#show();
      this.on_shown();
    }, kShowMs);
  }

  // What it thought before is folded: it is not the answer.
  #show() {
    if (this.reasoning && !this.#reasoning_text) {
      this.#reasoning_text = make('p', 'thought');
      this.turn.text.before(make('details', 'reasoning', make('summary', '', 'Reasoning'), this.#reasoning_text));
    }
    if (this.#reasoning_text) set_text(this.#reasoning_text, this.reasoning);
    this.#view.show(this.content);
  }

  finish() {
    clearTimeout(this.#timer);
    this.#show();
    this.turn.element.classList.remove('writing');
    this.turn.element.removeAttribute('aria-busy');
    if (this.#limit_reached) {
      const tokens = this.#last.usage?.completion_tokens;
      this.turn.element.append(make('p', 'note', `It ends here: the limit of ${tokens ? plural(tokens, 'token') : 'tokens'} was reached.`));
    }
    if (this.#last.usage) this.turn.element.append(report_element(report_of_chunk(this.#last)));
  }
}
