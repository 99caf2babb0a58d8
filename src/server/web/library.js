// The conversations that this browser keeps: a dialog that lists, searches, names, deletes, exports and imports them.

import { by_id, make, set_text } from './dom.js';
import { plural } from './format.js';
import { file_of } from './store.js';

const kTypingMs = 200;

function save_file(name, text) {
  const link = make('a', '');
  link.href = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const day = (ms) => (ms ? new Date(ms).toLocaleDateString(undefined, { year: 'numeric', month: 'short', day: 'numeric' }) : '');

export class Library {
  #dialog = by_id('library');
  #search = by_id('library-search');
  #list = by_id('library-list');
  #state = by_id('library-state');
  #timer = 0;
  #asked = 0;  // searches so far: an older one shows nothing any more

  // current(): the id of the open conversation. on_open(id), on_changed(id): it has another name, or is gone.
  constructor(store, { current, on_open, on_changed }) {
    Object.assign(this, { store, current, on_open, on_changed });
    by_id('show-library').addEventListener('click', () => this.open());
    by_id('library-close').addEventListener('click', () => this.#dialog.close());
    this.#search.addEventListener('input', () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#show(), kTypingMs);
    });
    this.#list.addEventListener('keydown', (event) => this.#walk(event));
    this.#search.addEventListener('keydown', (event) => this.#walk(event));
    by_id('export-all').addEventListener('click', () => this.#try(async () => save_file('quire-conversations.json', await this.store.export_all())));
    const chooser = by_id('import-file');
    by_id('import').addEventListener('click', () => chooser.click());
    chooser.addEventListener('change', () => this.#try(async () => {
      const text = await chooser.files[0].text();
      chooser.value = '';
      const taken = await this.store.import_all(text);
      await this.#show();
      set_text(this.#state, `${plural(taken, 'conversation')} imported.`);
    }));
  }

  open() {
    if (this.#dialog.open) return;
    this.#search.value = '';
    this.#dialog.showModal();
    this.#search.focus();
    this.#try(() => this.#show());
  }

  async #try(work) {
    set_text(this.#state, '');
    try {
      await work();
    } catch (error) {
      set_text(this.#state, error.message);
    }
  }

  async #show() {
    const asked = ++this.#asked;
    const words = this.#search.value.trim();
    const is_wanted = () => asked === this.#asked;
    const found = words ? await this.store.search(words, is_wanted) : (await this.store.list()).map((head) => ({ head, found: '' }));
    if (!is_wanted()) return;
    this.#list.replaceChildren(...found.map((result) => this.#row(result)));
    set_text(this.#state, found.length ? '' : words ? 'Nothing is found.' : 'No conversation is kept yet.');
    if (!this.store.lasting) set_text(this.#state, 'This browser keeps nothing here: conversations last as long as this page.');
  }

  #row({ head, found }) {
    const open = make('button', 'open', make('span', 'name', head.title), make('span', 'hint', `${plural(head.messages, 'message')}, ${day(head.changed)}`));
    if (found) open.append(make('span', 'found', found));
    open.type = 'button';
    if (head.id === this.current()) open.setAttribute('aria-current', 'true');
    open.addEventListener('click', () => {
      this.#dialog.close();
      this.on_open(head.id);
    });
    const row = make('li', '', open);
    const action = (name, on_click) => {
      const button = make('button', 'quiet', name);
      button.type = 'button';
      button.setAttribute('aria-label', `${name} “${head.title}”`);
      button.addEventListener('click', () => this.#try(() => on_click(button)));
      return button;
    };
    row.append(make('span', 'actions', action('Rename', () => this.#rename(row, head)),
      action('Export', async () => save_file('quire-conversation.json', file_of([(await this.store.load(head.id)).to_json()]))),
      action('Delete', (button) => this.#remove(button, head))));
    return row;
  }

  #rename(row, head) {
    const field = make('input', '');
    field.value = head.title;
    field.setAttribute('aria-label', 'New name');
    const keep = make('button', 'primary', 'Keep');
    const form = make('form', 'rename', field, keep);
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.#try(async () => {
        const conversation = await this.store.load(head.id);
        conversation.name = field.value.trim().slice(0, 200);
        await this.store.save(conversation);
        this.on_changed(head.id, conversation);
        await this.#show();
        this.#list.querySelector('button')?.focus();
      });
    });
    field.addEventListener('keydown', (event) => {
      if (event.key !== 'Escape') return;
      event.preventDefault();
      this.#show();
      this.#search.focus();
    });
    row.replaceChildren(form);
    field.select();
  }

  // Twice: what is deleted is gone.
  async #remove(button, head) {
    if (button.textContent === 'Delete') {
      button.textContent = 'Really?';
      button.setAttribute('aria-label', `Really delete “${head.title}”?`);
      button.addEventListener('blur', () => {
        button.textContent = 'Delete';
        button.setAttribute('aria-label', `Delete “${head.title}”`);
      }, { once: true });
      return;
    }
    this.on_changed(head.id, null);  // before it goes: an answer that ends meanwhile must not keep it once more
    await this.store.remove(head.id);
    await this.#show();
    this.#search.focus();
  }

  // Up and down through the names.
  #walk(event) {
    if (event.key !== 'ArrowDown' && event.key !== 'ArrowUp') return;
    if (event.target.closest('form')) return;
    const names = [...this.#list.querySelectorAll('.open')];
    const at = names.indexOf(event.target.closest('li')?.querySelector('.open'));
    const next = event.key === 'ArrowDown' ? at + 1 : at - 1;
    event.preventDefault();
    if (next < 0) this.#search.focus();
    else names[Math.min(next, names.length - 1)]?.focus();
  }
}
