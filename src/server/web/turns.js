// Messages as elements: who speaks, files, text, figures, and what can be done with one.

import { TextView, copy_text } from './answer_text.js';
import { files_element } from './attachments.js';
import { calls_element, results_form } from './calls.js';
import { make, set_text } from './dom.js';
import { count, plural } from './format.js';
import { report_element } from './report.js';

const kSpeakers = { user: 'You', tool: 'Tools' };
const kWhat = { user: 'message', tool: 'result', assistant: 'answer' };

function action(name, label, on_click) {
  const button = make('button', 'quiet', name);
  button.type = 'button';
  button.setAttribute('aria-label', label);
  button.addEventListener('click', () => on_click(button));
  return button;
}

// ‹ 2 of 3 ›, where a message has others in its place.
function branch_arrows(node, siblings, on_choose) {
  const at = siblings.indexOf(node);
  const what = kWhat[node.role];
  const arrow = (name, label, other) => {
    const button = action(name, `${label} ${what}`, () => on_choose(other, label));
    button.disabled = !other;
    return button;
  };
  const arrows = make('span', 'branches', arrow('‹', 'Previous', siblings[at - 1]),
    make('span', 'hint', `${at + 1} of ${siblings.length}`), arrow('›', 'Next', siblings[at + 1]));
  arrows.setAttribute('role', 'group');
  arrows.setAttribute('aria-label', `Branches: ${what} ${at + 1} of ${siblings.length}`);
  return arrows;
}

// One message. `actions`: on_edit(node, text), on_again(node), on_choose(node, label), on_results(node, results).
export class Turn {
  constructor(node, siblings, actions) {
    this.node = node;
    this.actions = actions;
    this.text = make('div', 'text');
    this.foot = make('div', 'turn-foot');  // figures, notes
    this.bar = make('p', 'turn-bar');
    this.element = make('article', `turn ${node.role}`, make('h3', 'speaker', kSpeakers[node.role] ?? (node.model || 'Answer')));
    this.element.dataset.node = node.id;
    if (node.files?.length) this.element.append(files_element(node.files));
    this.element.append(this.text, this.foot, this.bar);
    this.view = new TextView(this.text);
    this.#show_bar(siblings);
  }

  // All that is known of it.
  show(siblings) {
    const { node } = this;
    this.view.show(node.content);
    this.show_reasoning(node.reasoning);
    this.show_calls(node.calls);
    this.foot.replaceChildren();
    if (node.note) this.foot.append(make('p', 'note', node.note));
    if (node.error) this.show_error(node.error);
    if (node.report) this.foot.append(report_element(node.report));
    if (node.calls?.length && !node.pending && !this.actions.is_answered(node))
      this.foot.append(results_form(node.calls, (results) => this.actions.on_results(node, results)));
    this.#show_shared(siblings);
    this.#show_bar(siblings);
  }

  // What it thought before is folded: it is not the answer.
  show_reasoning(reasoning) {
    if (!reasoning) return;
    if (!this.thought) {
      this.thought = make('p', 'thought');
      this.text.before(make('details', 'reasoning', make('summary', '', 'Reasoning'), this.thought));
    }
    set_text(this.thought, reasoning);
  }

  // What it asks of tools stands below its words.
  show_calls(calls) {
    if (!calls?.length) return;
    const element = calls_element(calls);
    if (this.calls) this.calls.replaceWith(element);
    else this.text.after(element);
    this.calls = element;
  }

  show_error(text) {
    const line = make('p', 'error', text);
    line.setAttribute('role', 'alert');
    if (!this.node.content && !this.node.calls) line.append(' ', action('Try again', 'Try again', () => this.actions.on_again(this.node)));
    this.foot.append(line);
  }

  // Of a branch: what it has in common with the others is there once.
  #show_shared(siblings) {
    const { node } = this;
    const { cached_tokens: cached, prompt_tokens: prompt } = node.report ?? {};
    if (node.role !== 'assistant' || !cached || !(siblings.length > 1 || this.actions.is_branch(node))) return;
    this.foot.append(make('p', 'note shared', `This branch shares the KV pages of ${plural(cached, 'token')} with what was asked before: ${count(prompt - cached)} of ${count(prompt)} prompt tokens were computed.`));
  }

  #show_bar(siblings) {
    const { node, actions } = this;
    this.bar.replaceChildren();
    if (siblings.length > 1) this.bar.append(branch_arrows(node, siblings, actions.on_choose));
    if (node.pending) return;
    const what = kWhat[node.role];
    if (node.content) {
      this.bar.append(action('Copy', `Copy the ${what}`, async (button) => {
        button.textContent = await copy_text(node.content) ? 'Copied' : 'Not copied';
        setTimeout(() => { button.textContent = 'Copy'; }, 1500);
      }));
    }
    if (node.role === 'user') this.bar.append(action('Edit', 'Edit the message', () => this.edit()));
    else if (node.role === 'assistant' && (node.content || !node.error)) this.bar.append(action('Again', 'Answer again', () => actions.on_again(node)));
  }

  // The message as a field; what was there before stays, as another branch.
  edit() {
    if (this.element.querySelector('form')) return;
    const field = make('textarea', '');
    field.value = this.node.content;
    field.rows = Math.min(12, 1 + this.node.content.split('\n').length);
    field.setAttribute('aria-label', 'Edited message');
    const send = make('button', 'primary', 'Send');
    const form = make('form', 'edit', field);
    const end = () => {
      form.remove();
      this.text.hidden = this.bar.hidden = false;
      [...this.bar.querySelectorAll('button')].at(-1)?.focus();
    };
    form.append(make('p', 'edit-foot', make('span', 'hint', 'The old message stays as another branch.'), action('Cancel', 'Cancel editing', end), send));
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      if (field.value.trim() && this.actions.on_edit(this.node, field.value.trim())) form.remove();
    });
    field.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        end();
      } else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.text.hidden = this.bar.hidden = true;
    this.text.after(form);
    field.focus();
  }
}
