// A conversation as a tree: a message that was edited and an answer that was asked for again stand beside what was there
// before. What is shown, and sent, is the path to one leaf. Plain data: no word of elements or of the server.

import { message_text } from './attachments.js';
import { calls_message } from './calls.js';

const kTitle = 60;  // characters
const kMostNodes = 20_000;

const are_texts = (names) => (value) => Array.isArray(value) && value.every((one) => names.every((name) => typeof one?.[name] === 'string'));

const random_id = () => [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, '0')).join('');

// What a node keeps, and what it may be: what comes from a file is no more than this.
const kFields = {
  content: (value) => typeof value === 'string',
  reasoning: (value) => typeof value === 'string',
  model: (value) => typeof value === 'string',
  note: (value) => typeof value === 'string',
  error: (value) => typeof value === 'string',
  stream: (value) => typeof value === 'string',
  pending: (value) => typeof value === 'boolean',
  at: Number.isFinite,
  calls: are_texts(['id', 'name', 'arguments']),      // of tools, by the assistant
  results: are_texts(['id', 'name', 'content']),      // of role tool: what they returned
  files: (value) => Array.isArray(value) && value.every((file) => typeof file?.name === 'string' && typeof file.text === 'string'),
  report: (value) => typeof value === 'object' && value !== null && Object.entries(value).every(([name, figure]) =>
    figure == null || typeof figure === (name === 'why' ? 'string' : 'number')
    || (name === 'verdict' && Array.isArray(figure) && figure.every((line) => typeof line === 'string'))),
};

export class Conversation {
  id = random_id();
  name = '';          // that the reader gave it
  system = '';        // the system message that it was last asked with
  changed = 0;        // ms since 1970
  leaf = null;        // the id of the last node of the path that is shown
  #nodes = new Map(); // by id, parents before children
  #removed = new Set();

  get title() {
    if (this.name) return this.name;
    const first = [...this.#nodes.values()].find(({ role }) => role === 'user');
    const line = (first?.content || first?.files?.[0]?.name || '').trim().split('\n', 1)[0];
    return line.length > kTitle ? `${line.slice(0, kTitle - 1)}…` : line || 'Without a title';
  }
  get empty() {
    return this.#nodes.size === 0;
  }
  get size() {
    return this.#nodes.size;
  }

  node(id) {
    return this.#nodes.get(id);
  }

  // From the first message to the leaf.
  path(leaf = this.leaf) {
    const path = [];
    for (let node = this.#nodes.get(leaf); node; node = this.#nodes.get(node.parent)) path.push(node);
    return path.reverse();
  }

  // The nodes that stand in the same place, with it.
  siblings(node) {
    return [...this.#nodes.values()].filter(({ parent }) => parent === node.parent);
  }

  // A new node below `parent` (null: a first message); it is the leaf from now on.
  add(parent, role, fields) {
    const node = { id: random_id(), parent, role, content: '', at: Date.now(), ...fields };
    this.#nodes.set(node.id, node);
    this.leaf = node.id;
    return node;
  }

  // REQUIRES: nothing stands below it
  remove(node) {
    this.#nodes.delete(node.id);
    this.#removed.add(node.id);
    if (this.leaf === node.id) this.leaf = node.parent;
  }

  // Shows the branch of this node, down to what was said last in it.
  choose(node) {
    let last = node;
    for (const other of this.#nodes.values()) if (this.#leads_to(node, other)) last = other;  // parents come first: the newest
    this.leaf = last.id;
  }

  #leads_to(node, other) {
    for (let at = other; at; at = this.#nodes.get(at.parent)) if (at === node) return true;
    return false;
  }

  // What the server is asked: without what was never answered. `leaf`: the last node that counts.
  messages(leaf = this.leaf) {
    const messages = [];
    for (const node of this.path(leaf)) {
      if (node.role === 'tool') messages.push(...(node.results ?? []).map(({ id, name, content }) => ({ role: 'tool', tool_call_id: id, name, content })));
      else if (node.calls?.length) messages.push({ role: 'assistant', content: node.content, tool_calls: calls_message(node.calls) });
      else if (node.role === 'assistant' && !node.content) messages.pop();
      else messages.push({ role: node.role, content: message_text(node) });
    }
    return messages;
  }

  // Whether these words, in small letters, stand in it; a piece of the text around them, or null.
  find(words) {
    for (const { content } of this.#nodes.values()) {
      const at = content.toLowerCase().indexOf(words);
      if (at >= 0) return content.slice(Math.max(0, at - 30), at + words.length + 50).replace(/\s+/g, ' ');
    }
    return this.title.toLowerCase().includes(words) ? '' : null;
  }

  to_json() {
    return { id: this.id, name: this.name, system: this.system, changed: this.changed, leaf: this.leaf, nodes: [...this.#nodes.values()] };
  }

  // Takes over what another tab has added to the same conversation.
  join(stored) {
    for (const node of Conversation.from_json(stored).#nodes.values()) {
      if (!this.#nodes.has(node.id) && !this.#removed.has(node.id)) this.#nodes.set(node.id, node);
    }
  }

  // Of anything that was parsed as JSON. Throws an Error that says what is wrong with it.
  static from_json(json) {
    if (typeof json?.id !== 'string' || !Array.isArray(json.nodes)) throw new Error('this is no conversation');
    if (json.nodes.length > kMostNodes) throw new Error(`a conversation has more than ${kMostNodes} messages`);
    const conversation = new Conversation();
    conversation.id = json.id.slice(0, 64);
    for (const name of ['name', 'system']) if (typeof json[name] === 'string') conversation[name] = json[name];
    if (Number.isFinite(json.changed)) conversation.changed = json.changed;
    for (const given of json.nodes) {
      const parent = given?.parent ?? null;
      const known = parent === null || conversation.#nodes.has(parent);
      if (typeof given?.id !== 'string' || !['user', 'assistant', 'tool'].includes(given.role) || !known || conversation.#nodes.has(given.id))
        throw new Error('a message of it has no place in the conversation');
      const node = { id: given.id, parent, role: given.role, content: '', at: 0 };
      for (const [name, fits] of Object.entries(kFields)) if (name in given && fits(given[name])) node[name] = given[name];
      conversation.#nodes.set(node.id, node);
    }
    conversation.leaf = conversation.#nodes.has(json.leaf) ? json.leaf : [...conversation.#nodes.keys()].at(-1) ?? null;
    return conversation;
  }

  // The same under another id, for one that is there already.
  as_new() {
    this.id = random_id();
    return this;
  }
}
