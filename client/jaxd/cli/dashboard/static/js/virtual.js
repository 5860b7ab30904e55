/** Long lists of which only what is in sight is in the page. */

const BESIDE = 8; // rows above and below what is in sight

/**
 * Which of the rows are in sight, and some more.
 * @param {Element} scroller what scrolls
 * @param {number} all how many rows there are
 * @param {number} height of a row, in pixels
 */
export function inSight(scroller, all, height) {
  const first = Math.max(0, Math.floor(scroller.scrollTop / height) - BESIDE);
  const fitting = Math.ceil(Math.min(scroller.clientHeight || 600, 3000) / height) + 2 * BESIDE;
  return { first: Math.min(first, Math.max(0, all - 1)), last: Math.min(all, first + fitting) };
}

/** Scrolls so that a row is in sight. */
export function bringIntoSight(scroller, index, height, head = 0) {
  const top = index * height;
  const room = scroller.clientHeight - head - height;
  if (scroller.scrollTop > top) scroller.scrollTop = top;
  else if (scroller.scrollTop < top - room) scroller.scrollTop = top - room;
}
