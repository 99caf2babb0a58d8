// Calls to the server. Every failure becomes an ApiError whose message is a sentence for the reader.

import { sentence } from './format.js';
import { ask_for_key, may_ask, stored_key } from './key.js';
import { SseParser } from './sse.js';

export class ApiError extends Error {
  constructor(message, { status = 0 } = {}) {
    super(sentence(message));
    this.status = status;  // 0: no answer came
  }
}

async function error_of(response) {
  try {
    const message = (await response.json()).error?.message;
    if (message) return new ApiError(message, response);
  } catch { /* not ours: say the status */ }
  return new ApiError(`The server answered ${response.status} ${response.statusText}`, response);
}

// `patient` calls (a person waits for them) ask for a key whenever one is missing; the others at most once.
async function call(path, { method = 'GET', body, signal, patient = false } = {}) {
  for (;;) {
    const key = stored_key();
    const headers = {};
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    if (key) headers.Authorization = `Bearer ${key}`;
    let response;
    try {
      response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body), cache: 'no-store' });
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new ApiError('The server does not answer');
    }
    if (response.ok) return response;
    if (response.status !== 401) throw await error_of(response);
    const newer = stored_key() !== key;  // given while this call was under way
    if (newer) continue;
    if (!(patient || may_ask()) || !await ask_for_key(key !== null)) {
      throw new ApiError('This server wants an API key', response);
    }
  }
}

const json = async (path, options) => (await call(path, options)).json();

export const get = (path) => json(path, { signal: AbortSignal.timeout(8000) });
export const steps = (id, choice) => get(`requests/${encodeURIComponent(id)}/steps?choice=${choice}`);
// The server computes the request's tokens once more, and others go first: that may take a while.
export const attention = (id, choice, { layer, head }, signal) => json(
  `requests/${encodeURIComponent(id)}/attention?choice=${choice}&layer=${layer}&head=${head}`,
  { signal: AbortSignal.any([signal, AbortSignal.timeout(40_000)]) });
export const models = () => json('v1/models');
export const lookup = (messages, signal) => json('kv/lookup', { method: 'POST', body: { messages }, signal });
export const pin = (messages) => json('kv/pin', { method: 'POST', body: { messages }, patient: true });
export const unpin = (number) => call(`kv/pin/${number}`, { method: 'DELETE', patient: true });
export const cancel = (id) => call(`requests/${encodeURIComponent(id)}`, { method: 'DELETE', patient: true });

// Yields the chunks of a streamed answer; ends after [DONE].
export async function* stream_chat(body, signal) {
  yield* chunks_of(await call('v1/chat/completions', { method: 'POST', body, signal, patient: true }));
}

// The same of one that is or was on its way, from its beginning.
export async function* stream_again(id, signal) {
  yield* chunks_of(await call(`v1/stream/${encodeURIComponent(id)}`, { signal, patient: true }));
}

async function* chunks_of(response) {
  const reader = response.body.getReader();
  const parser = new SseParser();
  try {
    for (let ended = false; !ended;) {
      const piece = await read_piece(reader);
      ended = piece.done;
      for (const data of ended ? parser.end() : parser.feed(piece.value)) {
        if (data === '[DONE]') return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ApiError(chunk.error.message, { status: 500 });
        yield chunk;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
  throw new ApiError('The stream broke off before the answer was complete');
}

async function read_piece(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError('The connection was lost before the answer was complete');
  }
}
