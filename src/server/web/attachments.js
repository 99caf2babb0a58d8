// Files of a message: chosen, dropped or pasted, read as text here (of a PDF its words), and sent as part of the message.

import { by_id, make, set_text } from './dom.js';
import { bytes } from './format.js';
import { kCanReadPdf, pdf_text } from './pdf_text.js';

const kMostPdf = 32 * 2 ** 20, kMostFile = 2 ** 20, kMostAll = 4 * 2 ** 20;  // bytes

// A fence longer than any in the text: nothing in a file ends it.
function fenced({ name, text }) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = '`'.repeat(longest + 1);
  return `File ${name}:\n${fence}\n${text}${text.endsWith('\n') ? '' : '\n'}${fence}\n\n`;
}

// A message as the model reads it.
export const message_text = ({ content, files = [] }) => files.map(fenced).join('') + content;

// Throws an Error whose message is a sentence.
async function read_file(file) {
  const name = file.name.replace(/[\r\n`]/g, ' ').slice(0, 200) || 'pasted';
  const begins = new TextDecoder('latin1').decode(await file.slice(0, 5).arrayBuffer());
  const is_pdf = begins === '%PDF-';
  const most = is_pdf ? kMostPdf : kMostFile;
  if (file.size > most) throw new Error(`${name} has ${bytes(file.size)}; a file may have ${bytes(most)}.`);
  if (is_pdf && !kCanReadPdf) throw new Error(`${name} is a PDF, and this program was built without what reads them.`);
  if (is_pdf) return { name, text: await pdf_text(name, new Uint8Array(await file.arrayBuffer()), kMostFile) };
  let text = null;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer());
  } catch { /* told below */ }
  if (text === null || text.includes('\0')) throw new Error(`${name} is not a text.`);
  return { name, text: text.replaceAll('\r\n', '\n') };
}

// The files of a message as folds to open.
export const files_element = (files) => make('ul', 'files', ...files.map(({ name, text }) => {
  const shown = make('pre', '', make('code', '', text));
  shown.tabIndex = 0;
  return make('li', '', make('details', '', make('summary', '', name, ' ', make('span', 'hint', bytes(text.length))), shown));
}));

// The files of the message that is being written.
export class Attachments {
  #files = [];
  #list = by_id('attached');
  #error = by_id('attach-error');

  constructor() {
    const chooser = by_id('attach-file');
    by_id('attach').addEventListener('click', () => chooser.click());
    chooser.addEventListener('change', () => {
      this.#take([...chooser.files]);
      chooser.value = '';
    });
    const chat = by_id('chat');
    chat.addEventListener('dragover', (event) => {
      if (event.dataTransfer?.types.includes('Files')) event.preventDefault();
    });
    chat.addEventListener('drop', (event) => {
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      this.#take([...event.dataTransfer.files]);
    });
    by_id('message').addEventListener('paste', (event) => {
      if (!event.clipboardData?.files.length) return;
      event.preventDefault();
      this.#take([...event.clipboardData.files]);
    });
  }

  get files() {
    return this.#files;
  }

  // Hands them over: the next message begins without.
  take_all() {
    const files = this.#files;
    this.#files = [];
    set_text(this.#error, '');
    this.#show();
    return files;
  }

  async #take(files) {
    set_text(this.#error, '');
    for (const file of files) {
      try {
        const read = await read_file(file);
        const all = this.#files.reduce((sum, { text }) => sum + text.length, read.text.length);
        if (all > kMostAll) throw new Error(`All files together may have ${bytes(kMostAll)}; ${file.name} is left out.`);
        this.#files.push(read);
      } catch (error) {
        set_text(this.#error, error.message);
      }
    }
    this.#show();
    by_id('message').dispatchEvent(new Event('input'));
  }

  #show() {
    this.#list.replaceChildren(...this.#files.map((file) => {
      const remove = make('button', 'quiet', '×');
      remove.type = 'button';
      remove.setAttribute('aria-label', `Leave out ${file.name}`);
      remove.addEventListener('click', () => {
        this.#files = this.#files.filter((other) => other !== file);
        this.#show();
        by_id('attach').focus();
      });
      return make('li', '', file.name, ' ', make('span', 'hint', bytes(file.text.length)), remove);
    }));
  }
}
