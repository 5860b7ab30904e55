/** Boxes of a drawing that can be walked through with the arrow keys, one of them in the tab order. */

/** Makes the boxes below an element such a group; `chosen(box)` is called for the one in focus. */
export function walkable(root, chosen) {
  root.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const boxes = [...root.querySelectorAll("[data-box]")];
    const at = boxes.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    boxes[Math.min(boxes.length - 1, Math.max(0, at + step))].focus();
  });
  const choose = (event) => {
    const box = event.target.closest?.("[data-box]");
    if (!box) return;
    for (const other of root.querySelectorAll('[data-box][tabindex="0"]')) other.setAttribute("tabindex", "-1");
    box.setAttribute("tabindex", "0");
    chosen(box);
  };
  root.addEventListener("focusin", choose);
  root.addEventListener("pointerover", choose);
}

/** After drawing: one box is in the tab order, and the one that had the focus has it again. */
export function keepFocus(root, focused) {
  const boxes = [...root.querySelectorAll("[data-box]")];
  const same = boxes.find((box) => box.dataset.box === focused);
  (same ?? boxes[0])?.setAttribute("tabindex", "0");
  if (same) same.focus({ preventScroll: true });
}

/** Which box has the focus. */
export function focusedBox(root) {
  return root.contains(document.activeElement) ? document.activeElement.dataset.box : undefined;
}
