// Conversations kept in this browser (IndexedDB), and nowhere else. Where there is none, as in some private windows, they
// last as long as the page.

import { Conversation } from './conversation.js';

const kMost = 1000;                // conversations
const kMostBytes = 64 * 2 ** 20;   // of their texts; what is more is refused, never thrown away

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});
const ended = (transaction) => new Promise((resolve, reject) => {
  transaction.oncomplete = () => resolve();
  transaction.onerror = transaction.onabort = () => reject(transaction.error ?? new Error('the browser did not keep it'));
});

// What a list needs to know of a conversation.
const head_of = (conversation, bytes) => ({ id: conversation.id, title: conversation.title, changed: conversation.changed, messages: conversation.size, bytes });

export class Store {
  #database = null;        // a promise; null until it is first needed
  #memory = new Map();     // id -> {head, body}, where nothing else keeps it
  lasting = true;          // false: only as long as the page

  async #open() {
    this.#database ??= (async () => {
      try {
        const request = indexedDB.open('quire', 1);
        request.onupgradeneeded = () => {
          for (const name of ['heads', 'bodies']) request.result.createObjectStore(name, { keyPath: 'id' });
        };
        return await done(request);
      } catch {
        this.lasting = false;
        return null;
      }
    })();
    return this.#database;
  }

  // The newest first.
  async list() {
    const database = await this.#open();
    const heads = database ? await done(database.transaction('heads').objectStore('heads').getAll()) : [...this.#memory.values()].map(({ head }) => head);
    return heads.sort((a, b) => b.changed - a.changed);
  }

  // Null if there is none.
  async load(id) {
    const database = await this.#open();
    const body = database ? await done(database.transaction('bodies').objectStore('bodies').get(id)) : this.#memory.get(id)?.body;
    return body ? Conversation.from_json(body) : null;
  }

  // Throws an Error, whose message is a sentence, if there is no room for it.
  async save(conversation) {
    const database = await this.#open();
    if (!database) {
      const body = structuredClone(conversation.to_json());
      const head = head_of(conversation, JSON.stringify(body).length);
      refuse_if_full([...this.#memory.values()].map((kept) => kept.head), head);
      this.#memory.set(conversation.id, { head, body });
      return;
    }
    const transaction = database.transaction(['heads', 'bodies'], 'readwrite');
    const finished = ended(transaction);
    finished.catch(() => {});
    try {
      const [heads, stored] = await Promise.all([done(transaction.objectStore('heads').getAll()), done(transaction.objectStore('bodies').get(conversation.id))]);
      if (stored) conversation.join(stored);
      const body = conversation.to_json();
      const head = head_of(conversation, JSON.stringify(body).length);
      refuse_if_full(heads, head);
      transaction.objectStore('heads').put(head);
      transaction.objectStore('bodies').put(body);
    } catch (error) {
      try { transaction.abort(); } catch { /* it has ended by itself */ }
      throw error;
    }
    await finished;
  }

  async remove(id) {
    const database = await this.#open();
    this.#memory.delete(id);
    if (!database) return;
    const transaction = database.transaction(['heads', 'bodies'], 'readwrite');
    for (const name of ['heads', 'bodies']) transaction.objectStore(name).delete(id);
    await ended(transaction);
  }

  // Those in which these words stand: [{head, found}], the newest first. One at a time: all at once may be much.
  async search(words, is_wanted) {
    const results = [];
    for (const head of await this.list()) {
      if (!is_wanted()) return results;
      const found = (await this.load(head.id))?.find(words.toLowerCase());
      if (found != null) results.push({ head, found });
    }
    return results;
  }

  async export_all() {
    const conversations = [];
    for (const { id } of await this.list()) conversations.push((await this.load(id)).to_json());
    return file_of(conversations);
  }

  // Takes what export_all() or export_one() wrote. Returns how many; what is here already is left as it is.
  async import_all(text) {
    let json;
    try {
      json = JSON.parse(text);
    } catch {
      throw new Error('This file is not JSON.');
    }
    if (json?.quire !== 'conversations' || !Array.isArray(json.conversations)) throw new Error('This file has no conversations of quire.');
    let taken = 0;
    for (const given of json.conversations) {
      const conversation = Conversation.from_json(given);
      const here = await this.load(conversation.id);
      if (here && JSON.stringify(here.to_json()) === JSON.stringify(conversation.to_json())) continue;
      await this.save(here ? conversation.as_new() : conversation);
      ++taken;
    }
    return taken;
  }
}

export const file_of = (conversations) => JSON.stringify({ quire: 'conversations', version: 1, conversations }, null, 1);

function refuse_if_full(heads, head) {
  const others = heads.filter(({ id }) => id !== head.id);
  const bytes = others.reduce((sum, other) => sum + other.bytes, head.bytes);
  if (others.length >= kMost) throw new Error(`This conversation is not kept: there are ${kMost} already. Export and delete some.`);
  if (bytes > kMostBytes) throw new Error(`This conversation is not kept: all together would be more than ${kMostBytes / 2 ** 20} MB. Export and delete some.`);
}
