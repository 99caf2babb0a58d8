// Keys that work wherever the focus is.

import { by_id } from './dom.js';

export function listen_to_keys(chat) {
  const dialog = by_id('keys-dialog');
  by_id('keys-close').addEventListener('click', () => dialog.close());
  by_id('show-keys').addEventListener('click', () => {
    by_id('library').close();
    dialog.showModal();
  });
  document.addEventListener('keydown', (event) => {
    if (document.querySelector('dialog[open]')) return;
    const typing = event.target.closest?.('input, textarea, select');
    const command = (event.ctrlKey || event.metaKey) && !event.altKey;
    const key = event.key.toLowerCase();
    if (event.key === 'Escape' && chat.busy) chat.stop();
    else if (command && !event.shiftKey && key === 'k') chat.show_library();
    else if (command && event.shiftKey && key === 'o') chat.restart();
    else if (!typing && !command && key === '/') by_id('message').focus();
    else if (!typing && !command && key === '?') dialog.showModal();
    else return;
    event.preventDefault();
  });
}
