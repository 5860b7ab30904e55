/** The events that this page receives: the view once, then patches, and how the connections are. */

/**
 * Connects, and goes on until the dashboard ends.
 * @param {Object} on `view(view)`, `patch(patch)`, `state(name, text)`
 * @returns {{again: function(): void}} `again` asks for the whole view once more
 */
export function connect(on) {
  let source = null;

  function open() {
    source = new EventSource("events");
    source.addEventListener("view", (event) => on.view(JSON.parse(event.data)));
    source.addEventListener("patch", (event) => on.patch(JSON.parse(event.data)));
    source.addEventListener("state", (event) => {
      const { state, text } = JSON.parse(event.data);
      on.state(state, text);
    });
    source.addEventListener("end", () => {
      source.close();
      on.state("ended", "The dashboard has ended. Start it again: jaxd dashboard");
    });
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) {
        on.state("ended", "This dashboard is gone. Open the link that jaxd dashboard prints.");
      } else {
        on.state("away", "The dashboard does not answer. Trying again; the figures are old.");
      }
    });
  }

  open();
  return { again: () => { source.close(); open(); } };
}
