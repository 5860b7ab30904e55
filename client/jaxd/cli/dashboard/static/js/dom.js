/** Elements. Text is always text: nothing here parses HTML. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element.
 * @param {string} tag
 * @param {Object} attributes `class`, `text`, `data` (an object), functions (listeners), attributes
 * @param {...(Node|string)} children
 */
export function make(tag, attributes = {}, ...children) {
  return finish(document.createElement(tag), attributes, children);
}

/** An element of a drawing. */
export function draw(tag, attributes = {}, ...children) {
  return finish(document.createElementNS(SVG, tag), attributes, children);
}

function finish(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets a text, and touches the page only where it differs. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an attribute, and touches the page only where it differs. */
export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** A titled part of a page. */
export function section(title, ...children) {
  const id = `section-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  const head = make("h3", { id, text: title });
  return make("section", { "aria-labelledby": id }, head, ...children);
}

let pending = "";

/**
 * Has a screen reader say something: what somebody has done, or a change of the connection.
 * Figures are never said, so that it stays silent while they change.
 */
export function announce(text) {
  const said = document.getElementById("said");
  pending = text;
  said.textContent = "";
  setTimeout(() => { said.textContent = pending; }, 50); // the same text again is said again
}
