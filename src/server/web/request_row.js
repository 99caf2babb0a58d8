// One request of the timeline: a line of words that unfolds, and a strip of what it did when.

import { AttentionFold } from './attention_fold.js';
import { request_colour, theme_colour } from './colours.js';
import { canvas_context, make, set_text } from './dom.js';
import { count, gaps, median, ms, plural, sentence, short_id, why_missed } from './format.js';
import { StepsFold } from './steps_fold.js';

const kHeight = 20;

const kStateWords = { waiting: 'waiting', loading: 'waiting for its pages', prefill: 'reading the prompt', decode: 'answering' };
const is_queued = (state) => state === 'waiting' || state === 'loading';

export class RequestRow {
  #request = null;
  #view = null;
  #pointer_x = null;

  constructor(id, { on_cancel, on_notice, on_point, load_steps, load_attention }) {
    this.on_point = on_point;
    this.chip = make('span', 'chip');
    this.chip.style.background = request_colour(id);
    this.kind = make('span', 'row-kind');
    this.figures = make('span', 'visually-hidden');
    this.head = make('button', 'row-head', this.chip, make('span', 'row-name', short_id(id)), this.kind, this.figures);
    this.head.type = 'button';
    this.head.setAttribute('aria-expanded', 'false');
    this.canvas = make('canvas', 'strip');
    this.canvas.setAttribute('aria-hidden', 'true');  // the line above and the fold below say the same
    this.words = make('div');
    this.cancel = make('button', 'quiet', 'Cancel this request');
    this.cancel.type = 'button';
    this.cancel.addEventListener('click', () => on_cancel(id));
    this.steps = new StepsFold(load_steps);
    this.attention = new AttentionFold(load_attention);
    this.more = make('div', 'row-more', this.words, this.steps.element, this.attention.element, this.cancel);
    this.more.hidden = true;
    this.element = make('li', '', this.head, this.canvas, this.more);
    this.element.dataset.request = id;

    this.head.addEventListener('click', () => {
      this.more.hidden = !this.more.hidden;
      this.head.setAttribute('aria-expanded', String(!this.more.hidden));
      this.#refresh_folds();
    });
    for (const sign of ['pointerenter', 'focusin']) this.element.addEventListener(sign, () => on_notice(id));
    for (const sign of ['pointerleave', 'focusout']) this.element.addEventListener(sign, () => on_notice(null));
    this.canvas.addEventListener('pointermove', (event) => this.#point(event.offsetX));
    this.canvas.addEventListener('pointerdown', (event) => this.#point(event.offsetX));
    this.canvas.addEventListener('pointerleave', () => this.#point(null));
  }

  show(request) {
    this.#request = request;
    set_text(this.kind, request.kind === 'completion' ? 'text' : request.kind);
    set_text(this.figures, state_words(request));
    this.cancel.hidden = request.finished_ms != null;
    this.#refresh_folds();
    const sentences = [sentence(figure_words(request)), account(request), gap_words(request), ...request.verdict.map(sentence)].filter(Boolean);
    if (this.words.textContent === sentences.join('')) return;
    this.words.replaceChildren(...sentences.map((text) => make('p', '', text)));
  }

  get unfolded() {
    return !this.more.hidden;
  }

  #refresh_folds() {
    if (!this.unfolded) return;
    this.steps.show(this.#request);
    this.attention.show(this.#request);
  }

  draw(view) {
    this.#view = view;
    const width = this.canvas.clientWidth;
    if (!width || !this.#request) return;
    const context = canvas_context(this.canvas, width, kHeight);
    const x = (at_ms) => ((at_ms - view.start) / (view.end - view.start)) * width;
    const { id, submitted_ms, queue_ms, chunks, token_ms, state, finished_ms } = this.#request;

    draw_grid(context, width, kHeight);
    context.fillStyle = theme_colour('--queue');
    const queue_end = is_queued(state) && !chunks.length ? view.end : submitted_ms + queue_ms;
    const queue_width = x(queue_end) - x(submitted_ms);
    if (queue_width > 0.7) context.fillRect(x(submitted_ms), 6, queue_width, kHeight - 12);
    for (const chunk of chunks) draw_chunk(context, x(chunk.at_ms), x(chunk.at_ms + chunk.took_ms), chunk.tokens);
    context.fillStyle = request_colour(id);
    for (const at_ms of token_ms) {
      const left = x(at_ms);
      if (left > -1 && left <= width) context.fillRect(left - 0.6, 2, 1.2, kHeight - 4);
    }
    if (finished_ms != null) {
      context.fillStyle = theme_colour('--ink');
      context.fillRect(x(finished_ms), 0, 1.5, kHeight);
    }
    if (this.#pointer_x !== null) this.#tell();
  }

  #point(offset_x) {
    this.#pointer_x = offset_x;
    if (offset_x === null) this.on_point('');
    else this.#tell();
  }

  #tell() {
    const { start, end } = this.#view;
    const at_ms = start + (this.#pointer_x / this.canvas.clientWidth) * (end - start);
    this.on_point(`${short_id(this.#request.id)}, ${figure_words(this.#request)}. At that moment ${moment_words(this.#request, at_ms)} `
      + gap_words(this.#request));
  }
}

// A base line, and a mark at each five seconds.
export function draw_grid(context, width, height) {
  context.fillStyle = theme_colour('--rule');
  context.fillRect(0, height - 1, width, 1);
  for (let quarter = 0; quarter < 4; ++quarter) context.fillRect(Math.round(quarter * width / 4), 0, 1, height);
}

function draw_chunk(context, left, right, tokens) {
  if (right < 0) return;
  const width = Math.max(1.5, right - left - 0.75);
  context.fillStyle = theme_colour('--prefill');
  context.fillRect(left, 2, width, kHeight - 4);
  if (width < 30) return;
  context.fillStyle = theme_colour('--sheet');
  context.font = '600 10.5px system-ui, sans-serif';
  context.textBaseline = 'middle';
  context.fillText(count(tokens), Math.max(3, left + 5), kHeight / 2 + 0.5, width - 6);
}

const state_words = ({ state, finish_reason }) => kStateWords[state] ?? finish_words(finish_reason);

function figure_words(request) {
  const { prompt_tokens, answer_tokens, ttft_ms, token_ms } = request;
  const between = median(gaps(token_ms));
  const words = [`${state_words(request)}: ${count(prompt_tokens)} + ${plural(answer_tokens, 'token')}`];
  if (ttft_ms != null) words.push(`first after ${ms(ttft_ms)}`);
  if (between != null) words.push(`then every ${ms(between)}`);
  return words.join(', ');
}

// What this request did at that moment.
function moment_words({ submitted_ms, queue_ms, chunks, token_ms, finished_ms, state }, at_ms) {
  if (at_ms < submitted_ms) return 'it had not come.';
  if (finished_ms != null && at_ms > finished_ms) return `it had ended, ${ms(finished_ms - submitted_ms)} after it came.`;
  if (at_ms < submitted_ms + queue_ms || (is_queued(state) && !chunks.length)) {
    return `it waited, ${ms(Math.max(queue_ms, 0))} in all.`;
  }
  const which = chunks.findIndex((piece) => at_ms >= piece.at_ms && at_ms <= piece.at_ms + piece.took_ms);
  if (which >= 0) return chunk_words(chunks, which);
  const next = token_ms.findIndex((moment) => moment >= at_ms);
  if (next > 0) return `${ms(token_ms[next] - token_ms[next - 1])} passed between two tokens.`;
  return next === 0 ? 'its first token was on its way.' : 'its next token was on its way.';
}

// Which part of the prompt a chunk was, and what it added to the cache.
function chunk_words(chunks, which) {
  const { tokens, took_ms, entries_before, entries_after } = chunks[which];
  const place = chunks.length > 1 ? `prefill chunk ${which + 1} of ${chunks.length}, ` : 'a prefill chunk of ';
  return `it computed ${place}${plural(tokens, 'token')} in ${ms(took_ms)}: KV entries ${count(entries_before)} → ${count(entries_after)}.`;
}

function account(request) {
  const { queue_ms, prompt_tokens, cached_tokens, host_tokens, disk_tokens, remote_tokens, chunks, kv_pages, preemptions, drafted, accepted, client } = request;
  const parts = [`It waited ${ms(queue_ms)}`];
  parts.push(`${count(cached_tokens)} of ${plural(prompt_tokens, 'prompt token')} came from the cache${why_missed(request)}`);
  if (host_tokens) parts.push(`${count(host_tokens)} of them from host memory`);
  if (disk_tokens) parts.push(`${count(disk_tokens)} of them from the disk`);
  if (remote_tokens) parts.push(`${count(remote_tokens)} of them from the shared store`);
  if (chunks.length) parts.push(`${plural(chunks.length, 'prefill chunk')}`);
  if (kv_pages) parts.push(plural(kv_pages, 'KV page'));
  if (drafted) parts.push(`${count(accepted)} of ${count(drafted)} drafted tokens accepted`);
  if (preemptions) parts.push(`preempted ${preemptions === 1 ? 'once' : `${preemptions} times`}`);
  if (client) parts.push(`client ${client}`);
  return `${parts.join('; ')}.`;
}

function gap_words({ gap_causes }) {
  const causes = Object.entries(gap_causes ?? {}).filter(([, times]) => times > 0);
  const named = causes.filter(([cause]) => cause !== 'none').sort((a, b) => b[1] - a[1]);
  if (!causes.length) return '';
  if (!named.length) return 'No gap between its tokens was held up.';
  return `Gaps held up by ${named.map(([cause, times]) => `${cause} (${count(times)})`).join(', ')}.`;
}

function finish_words(reason) {
  return { stop: 'ended', length: 'reached its limit', cancelled: 'cancelled', error: 'failed' }[reason] ?? reason ?? 'finished';
}
