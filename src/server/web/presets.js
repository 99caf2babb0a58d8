// Named sets of options, the system message among them, kept in this browser.

import { by_id, make, set_text } from './dom.js';

const kStored = 'quire.presets';
const kMost = 50;

export class Presets {
  #sets = {};  // name -> values
  #choice = by_id('preset');
  #name = by_id('preset-name');

  // read() gives the values of the fields, write(values) sets them.
  constructor(read, write) {
    try {
      const stored = JSON.parse(localStorage.getItem(kStored)) ?? {};
      for (const [name, values] of Object.entries(stored)) if (typeof values === 'object' && values) this.#sets[name] = values;
    } catch { /* nothing kept */ }
    this.#show('');
    this.#choice.addEventListener('change', () => {
      const values = this.#sets[this.#choice.value];
      if (values) write(values);
      by_id('preset-delete').disabled = !values;
      this.#name.value = this.#choice.value;
    });
    by_id('preset-keep').addEventListener('click', () => {
      const name = this.#name.value.trim().slice(0, 60);
      if (!name) return this.#say('A preset needs a name.');
      if (!(name in this.#sets) && Object.keys(this.#sets).length >= kMost) return this.#say(`There are ${kMost} presets already.`);
      this.#sets[name] = read();
      this.#keep(name, `“${name}” is kept.`);
    });
    by_id('preset-delete').addEventListener('click', () => {
      const name = this.#choice.value;
      delete this.#sets[name];
      this.#name.value = '';
      this.#keep('', `“${name}” is deleted.`);
      this.#choice.focus();
    });
    this.#name.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter') return;
      event.preventDefault();  // it is not the message that is sent
      by_id('preset-keep').click();
    });
  }

  #say(text) {
    set_text(by_id('preset-state'), text);
  }

  #keep(chosen, said) {
    try {
      localStorage.setItem(kStored, JSON.stringify(this.#sets));
      this.#say(said);
    } catch {
      this.#say('This browser keeps nothing: the preset lasts as long as the page.');
    }
    this.#show(chosen);
  }

  #show(chosen) {
    const option = (name, words) => {
      const element = make('option', '', words);
      element.value = name;
      return element;
    };
    this.#choice.replaceChildren(option('', 'None'), ...Object.keys(this.#sets).sort().map((name) => option(name, name)));
    this.#choice.value = chosen;
    by_id('preset-delete').disabled = !chosen;
  }
}
