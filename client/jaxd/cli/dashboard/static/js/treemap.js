/** A squarified treemap (Bruls, Huizing and van Wijk), as a drawing. */

/**
 * Places rectangles of these areas, so that each is nearly a square.
 * @param {Array<{value: number}>} items
 * @param {{x: number, y: number, width: number, height: number}} box
 * @returns {Array<{item: Object, x: number, y: number, width: number, height: number}>}
 */
export function squarify(items, box) {
  const sorted = items.filter((item) => item.value > 0).sort((a, b) => b.value - a.value);
  const all = sorted.reduce((sum, item) => sum + item.value, 0);
  const placed = [];
  let { x, y, width, height } = box;
  let left = all;
  while (sorted.length && width > 0 && height > 0) {
    const scale = (width * height) / left; // pixels for each unit
    const side = Math.min(width, height);
    const row = takeRow(sorted, side, scale);
    const sum = row.reduce((total, item) => total + item.value, 0);
    const depth = (sum * scale) / side;
    let along = 0;
    for (const item of row) {
      const length = (item.value * scale) / depth;
      placed.push(width >= height
        ? { item, x, y: y + along, width: depth, height: length }
        : { item, x: x + along, y, width: length, height: depth });
      along += length;
    }
    if (width >= height) { x += depth; width -= depth; } else { y += depth; height -= depth; }
    left -= sum;
  }
  return placed;
}

/** Takes as many items as make the worst of their rectangles better. */
function takeRow(sorted, side, scale) {
  const row = [];
  let sum = 0;
  let worst = Infinity;
  while (sorted.length) {
    const next = sorted[0].value * scale;
    const total = sum + next;
    const largest = row.length ? row[0].value * scale : next;
    const ratio = Math.max((side * side * largest) / (total * total), (total * total) / (side * side * next));
    if (ratio > worst) break;
    worst = ratio;
    sum = total;
    row.push(sorted.shift());
  }
  return row;
}
