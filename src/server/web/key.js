// The API key, where the server wants one: asked for once, kept for this tab.

import { by_id, set_text } from './dom.js';

const kStored = 'quire.key';
let asking = null;      // the promise of the dialog that is open
let dismissed = false;  // the user closed it: polling does not ask again by itself

export const stored_key = () => {
  try { return sessionStorage.getItem(kStored); } catch { return null; }
};

export const may_ask = () => !dismissed;

// Resolves to true when there is a new key to try.
export function ask_for_key(refused) {
  asking ??= new Promise((resolve) => {
    const dialog = by_id('key-dialog');
    if (refused) set_text(by_id('key-why'), 'The server did not accept that key.');
    by_id('key').value = '';
    by_id('key-cancel').onclick = () => dialog.close('');
    by_id('key-form').onsubmit = (event) => {
      event.preventDefault();
      dialog.close(by_id('key').value.trim());
    };
    dialog.returnValue = '';
    dialog.onclose = () => {
      asking = null;
      const key = dialog.returnValue;
      dismissed = key === '';
      if (key) {
        try { sessionStorage.setItem(kStored, key); } catch { /* no storage: nothing to keep */ }
      }
      resolve(key !== '');
    };
    dialog.showModal();
  });
  return asking;
}
