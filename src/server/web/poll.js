// Asks the server again and again: often while something happens, seldom when idle, never while the tab is hidden.

const kBusyMs = 500;
const kIdleMs = 2000;

export class Poller {
  #read;       // async; returns true while something changes
  #on_state;   // told 'alive' or the error, after each attempt
  #timer = 0;
  #reading = false;
  #again = false;

  constructor(read, on_state) {
    this.#read = read;
    this.#on_state = on_state;
    document.addEventListener('visibilitychange', () => this.#schedule(0));
    this.#schedule(0);
  }

  // Something is about to happen: look now.
  kick() {
    if (this.#reading) this.#again = true;
    else this.#schedule(0);
  }

  #schedule(delay) {
    clearTimeout(this.#timer);
    if (!document.hidden) this.#timer = setTimeout(() => this.#run(), delay);
  }

  async #run() {
    if (this.#reading) return;
    this.#reading = true;
    let busy = false;
    try {
      busy = await this.#read();
      this.#on_state('alive');
    } catch (error) {
      this.#on_state(error);
    }
    this.#reading = false;
    this.#schedule(this.#again ? 0 : busy ? kBusyMs : kIdleMs);
    this.#again = false;
  }
}
