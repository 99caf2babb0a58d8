// The figures under an answer: what it cost, and why.

import { make } from './dom.js';
import { bytes, count, gaps, median, ms, plural, rate, sentence, why_missed } from './format.js';

// From the last chunk of a stream.
export function report_of_chunk({ quire, usage }) {
  const timings = quire?.timings ?? {};
  return {
    queue_ms: timings.queue_ms,
    first_ms: timings.ttft_ms,
    between_ms: timings.itl_ms_p50,
    slowest_ms: timings.itl_ms_p99,
    answer_rate: timings.decode_tok_s,
    prompt_rate: timings.prefill_tok_s,
    prompt_tokens: usage?.prompt_tokens,
    answer_tokens: usage?.completion_tokens,
    cached_tokens: quire?.cache?.cached_tokens ?? usage?.prompt_tokens_details?.cached_tokens,
    why: quire?.cache?.why,
    pages: quire?.kv?.pages,
    bytes: quire?.kv?.bytes,
    verdict: quire?.verdict ?? [],
  };
}

// From GET /requests: for an answer that was stopped, whose stream told nothing.
export function report_of_request(request) {
  const between_ms = median(gaps(request.token_ms ?? []));
  return {
    queue_ms: request.queue_ms,
    first_ms: request.ttft_ms,
    between_ms,
    answer_rate: between_ms ? 1000 / between_ms : null,
    prompt_tokens: request.prompt_tokens,
    answer_tokens: request.answer_tokens,
    cached_tokens: request.cached_tokens,
    why: request.why,
    pages: request.kv_pages || null,  // a stopped request has given them back
    verdict: request.verdict ?? [],
  };
}

export const cache_words = (found) =>
  `${count(found.cached_tokens)} of ${plural(found.prompt_tokens, 'token')} cached${why_missed(found)}`;

const figure = (value, words) => make('li', '', make('b', '', value), ` ${words}`);

export function report_element(report) {
  const figures = make('ul', 'report-figures');
  if (report.first_ms != null) figures.append(figure(ms(report.first_ms), 'to the first token'));
  if (report.between_ms != null) figures.append(figure(ms(report.between_ms), 'between tokens'));
  if (report.answer_rate != null) figures.append(figure(rate(report.answer_rate), 'tokens/s'));
  if (report.answer_tokens != null) figures.append(figure(count(report.answer_tokens), 'tokens of answer'));
  if (report.cached_tokens != null && report.prompt_tokens != null) {
    figures.append(figure(`${count(report.cached_tokens)} of ${count(report.prompt_tokens)}`,
      `prompt tokens cached${why_missed(report)}`));
  }
  if (report.pages != null) {
    const size = report.bytes != null ? `, ${bytes(report.bytes)}` : '';
    figures.append(figure(count(report.pages), `KV page${report.pages === 1 ? '' : 's'}${size}`));
  }
  const element = make('div', 'report', figures);
  const sentences = explanation(report);
  if (sentences.length) {
    element.append(make('details', '', make('summary', '', 'What happened'),
      make('ul', '', ...sentences.map((text) => make('li', '', text)))));
  }
  return element;
}

function explanation(report) {
  const sentences = report.verdict.map(sentence);
  if (report.queue_ms > 1) sentences.unshift(`It waited ${ms(report.queue_ms)} before its first step.`);
  if (report.prompt_rate) sentences.push(`The prompt was computed at ${rate(report.prompt_rate)} tokens/s.`);
  if (report.slowest_ms) sentences.push(`One gap in a hundred between tokens was longer than ${ms(report.slowest_ms)}.`);
  return sentences;
}
