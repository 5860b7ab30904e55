/** What can be done to a server: asked for once more, then sent. */

import { announce, make } from "./dom.js";

/**
 * Asks whether to do something; true when it was confirmed.
 * @param {string} title a question
 * @param {string} text what happens then
 * @param {string} verb what the button says
 */
export function confirm(title, text, verb) {
  const dialog = document.getElementById("dialog");
  const heading = make("h2", { id: "dialog-title", text: title });
  const no = make("button", { type: "button", value: "", text: "Leave it", click: () => dialog.close("") });
  const yes = make("button", { type: "button", class: "bad", text: verb, click: () => dialog.close("yes") });
  dialog.replaceChildren(heading, make("p", { text }), make("p", { class: "buttons" }, no, yes));
  dialog.returnValue = "";
  dialog.showModal();
  no.focus(); // so that Enter alone does nothing
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

/** Shows something to read. */
export function show(title, ...content) {
  const dialog = document.getElementById("dialog");
  const close = make("button", { type: "button", text: "Close", click: () => dialog.close("") });
  dialog.replaceChildren(make("h2", { id: "dialog-title", text: title }), ...content, make("p", { class: "buttons" }, close));
  dialog.showModal();
  close.focus();
}

/** Has the server do something, after a question; says what came of it. */
export async function act(question, action, what) {
  if (!(await confirm(question.title, question.text, question.verb))) return;
  let said;
  try {
    const answer = await fetch(`actions/${action}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(what),
    });
    said = (await answer.json()).text;
  } catch {
    said = "The dashboard does not answer. Nothing was done.";
  }
  tell(said);
}

/** Says something at the top of the page, for a while. */
export function tell(said) {
  announce(said);
  const notice = document.getElementById("done") ?? make("p", { id: "done", class: "notice" });
  notice.textContent = said;
  document.getElementById("content").prepend(notice);
  setTimeout(() => notice.remove(), 8000);
}
