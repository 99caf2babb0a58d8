// Light or dark: what the system prefers until the button was pressed once. A plain script in the head, so that the first
// picture has the right colours. Says `themechange` on the document; canvases listen to it.
(() => {
  const kStored = 'quire.theme';
  const dark_system = matchMedia('(prefers-color-scheme: dark)');
  const root = document.documentElement;

  const stored = () => {
    try { return localStorage.getItem(kStored); } catch { return null; }
  };
  const is_dark = () => (root.dataset.theme ?? (dark_system.matches ? 'dark' : 'light')) === 'dark';

  function show_button() {
    const button = document.getElementById('theme');
    if (!button) return;
    button.textContent = is_dark() ? 'Light' : 'Dark';
    button.setAttribute('aria-label', `${button.textContent} colours`);
  }
  function announce() {
    show_button();
    document.dispatchEvent(new Event('themechange'));
  }

  if (stored() === 'light' || stored() === 'dark') root.dataset.theme = stored();
  dark_system.addEventListener('change', announce);
  document.addEventListener('DOMContentLoaded', () => {
    show_button();
    document.getElementById('theme').addEventListener('click', () => {
      root.dataset.theme = is_dark() ? 'light' : 'dark';
      try { localStorage.setItem(kStored, root.dataset.theme); } catch { /* a private window: this visit only */ }
      announce();
    });
  });
})();
