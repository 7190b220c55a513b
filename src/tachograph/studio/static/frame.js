/** When what has changed is drawn: a few times a second, less often where drawing takes long, at once for a hand. */

const LIVE = 250; // milliseconds between two looks at what is live
const SHARE = 8; // drawing may take this part of the time
const SLICE = 40; // milliseconds of drawing in one go

const waiting = new Set();
let timer = 0;
let next = 0;

/**
 * Have something drawn: its `draw()` is called, unless it is not in view (`inView`), where it waits for that.
 * @param {boolean} soon - for a hand: with the next frame.
 */
export function invalidate(what, soon = false) {
  waiting.add(what);
  if (soon) next = 0;
  if (soon && timer > 0) {
    clearTimeout(timer);
    timer = 0;
  }
  if (!timer) timer = setTimeout(() => requestAnimationFrame(draw), Math.max(0, next - performance.now()));
}

/** Draw it no more: it has left the page. */
export const forget = (what) => waiting.delete(what);

function draw() {
  const began = performance.now();
  timer = 0;
  let left = false;
  for (const what of waiting) {
    if (!what.inView) continue;
    if (performance.now() - began > SLICE) {
      left = true;
      break;
    }
    waiting.delete(what);
    what.draw();
  }
  const took = performance.now() - began;
  next = performance.now() + Math.max(left ? 0 : LIVE, took * SHARE);
  if (left) timer = setTimeout(() => requestAnimationFrame(draw), Math.max(0, next - performance.now()));
}
