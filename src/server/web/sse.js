// Server-sent events out of bytes. Pieces may end anywhere: inside a character, a line end or an event.

export class SseParser {
  #decoder = new TextDecoder();
  #line = '';        // the line that has not ended yet
  #data = null;      // data lines of the event that has not ended yet
  #after_cr = false; // the last piece ended in \r: a \n at the start of the next belongs to it

  // Returns the data of every event that these bytes complete.
  feed(bytes) {
    return this.#take(this.#decoder.decode(bytes, { stream: true }));
  }

  // At the end of the stream: an event without its last empty line still counts.
  end() {
    return this.#take(`${this.#decoder.decode()}\n\n`);
  }

  #take(text) {
    if (!text) return [];
    if (this.#after_cr && text[0] === '\n') text = text.slice(1);
    this.#after_cr = text.endsWith('\r');
    const lines = (this.#line + text).split(/\r\n|\r|\n/);
    this.#line = lines.pop();
    const events = [];
    for (const line of lines) {
      if (line === '') {
        if (this.#data !== null) events.push(this.#data);
        this.#data = null;
      } else if (line === 'data' || line.startsWith('data:')) {
        const value = line.slice(5).replace(/^ /, '');
        this.#data = this.#data === null ? value : `${this.#data}\n${value}`;
      }
    }
    return events;
  }
}
