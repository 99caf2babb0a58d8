// System message and sampling options: fields of the fold above the message, remembered in this browser.

import { by_id, set_text } from './dom.js';
import { Presets } from './presets.js';

const kStored = 'quire.options';

export class Options {
  #fields = [...document.querySelectorAll('#option-fields [data-option]')];
  #texts = [by_id('system'), by_id('stop-texts'), by_id('tools'), by_id('tool-choice'), by_id('schema')];

  constructor() {
    this.#restore();
    new Presets(() => this.#values(), (values) => this.#set(values));
    by_id('options').addEventListener('input', () => this.#store());
    by_id('reset-options').addEventListener('click', () => {
      this.#set({});
    });
  }

  get system() {
    return by_id('system').value.trim();
  }

  set system(text) {
    by_id('system').value = text;
    this.#store();
  }

  // What to send: only what was filled in. Null, with the reason shown, when a field cannot be meant.
  read() {
    const wrong = this.#fields.find((field) => !field.checkValidity());
    set_text(by_id('option-error'), wrong ? `${wrong.labels[0].textContent.trim()}: ${wrong.validationMessage}` : '');
    if (wrong) {
      by_id('options').open = true;
      wrong.focus();
      return null;
    }
    const options = {};
    for (const field of this.#fields) {
      if (field.value !== '') options[field.dataset.option] = Number(field.value);
    }
    const stop = by_id('stop-texts').value.split('\n').filter((line) => line !== '');
    if (stop.length) options.stop = stop;
    return this.#read_form(options) ? options : null;
  }

  // Tools, and what the answer keeps to. False, with the reason shown, if one is not what it should be.
  #read_form(options) {
    try {
      const tools = this.#json('tools', 'Tools');
      const choice = by_id('tool-choice').value;
      if (tools !== null && !Array.isArray(tools)) throw new Error('Tools: a list of functions is wanted, in [ ]');
      if (tools?.length) options.tools = tools.map(as_tool);
      if (tools?.length && choice) options.tool_choice = choice;
      const schema = this.#json('schema', 'Schema');
      if (schema !== null) options.response_format = { type: 'json_schema', json_schema: { name: 'answer', schema } };
      return true;
    } catch (error) {
      set_text(by_id('option-error'), error.message);
      by_id('options').open = true;
      return false;
    }
  }

  // What stands in a field as JSON; null if it is empty.
  #json(id, name) {
    const text = by_id(id).value.trim();
    if (!text) return null;
    try {
      return JSON.parse(text);
    } catch (error) {
      by_id(id).focus();
      throw new Error(`${name}: this is not JSON (${error.message})`);
    }
  }

  #all() {
    return [...this.#fields, ...this.#texts];
  }

  #name(field) {
    return field.dataset.option ?? field.id;
  }

  #values() {
    return Object.fromEntries(this.#all().map((field) => [this.#name(field), field.value]));
  }

  #set(values) {
    for (const field of this.#all()) field.value = values[this.#name(field)] ?? '';
    this.#store();
    set_text(by_id('option-error'), '');
  }

  #store() {
    try {
      localStorage.setItem(kStored, JSON.stringify(this.#values()));
    } catch { /* a private window: this visit only */ }
  }

  #restore() {
    try {
      const stored = JSON.parse(localStorage.getItem(kStored)) ?? {};
      for (const field of this.#all()) field.value = stored[this.#name(field)] ?? '';
    } catch { /* nothing kept */ }
  }
}

// A function alone is a tool, too.
const as_tool = (tool) => (tool?.function || !tool?.name ? tool : { type: 'function', function: tool });
