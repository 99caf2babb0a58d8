// The text of a PDF, by PDF.js where the program was built with it. Nothing of it is drawn or run.

import { libraries } from './libraries.js';
import { load_script } from './scripts.js';

const kMostPages = 2000;

export const kCanReadPdf = libraries.pdf;

// Throws an Error whose message is a sentence. `most`: characters; what is more is refused.
export async function pdf_text(name, bytes, most) {
  await load_script('pdf.js');
  const reader = globalThis.pdfjsLib;
  reader.GlobalWorkerOptions.workerSrc = 'pdf.worker.js';
  const task = reader.getDocument({ data: bytes, isEvalSupported: false, disableFontFace: true, useSystemFonts: false, enableXfa: false, verbosity: 0 });
  try {
    const document = await task.promise;
    if (document.numPages > kMostPages) throw new RangeError(`${name} has ${document.numPages} pages; ${kMostPages} can be read.`);
    let text = '';
    for (let number = 1; number <= document.numPages; ++number) {
      const page = await document.getPage(number);
      const { items } = await page.getTextContent();
      text += `${items.map(({ str, hasEOL }) => str + (hasEOL ? '\n' : '')).join('').trim()}\n\n`;
      if (text.length > most) throw new RangeError(`The text of ${name} is longer than ${most} characters.`);
      page.cleanup();
    }
    if (!text.trim()) throw new RangeError(`${name} has no text: perhaps its pages are pictures.`);
    return text.trim();
  } catch (error) {
    if (error instanceof RangeError) throw error;
    throw new Error(error.name === 'PasswordException' ? `${name} wants a password.` : `${name} cannot be read as a PDF.`);
  } finally {
    task.destroy();
  }
}
