// The query page: a statement runs without leaving the page, and can be canceled; what one ran before is kept in this
// browser, and nowhere else. Without this script, the form is sent and the page comes back with the result.
import { complete } from "./query_complete.js";
import { browse } from "./query_schema.js";

const kept = 50; // statements of the history

const form = document.getElementById("query");
if (form) {
  const sql = form.elements.sql;
  complete(sql);
  browse(sql);
  running(form, sql);
}

// running sends the form by fetch. Leaving it closes the connection, which ends the statement on the server.
function running(form, sql) {
  const status = element("span", { className: "busy" });
  status.setAttribute("role", "status");
  const cancel = element("button", { type: "button", textContent: "Cancel", hidden: true });
  const keys = element("span", { className: "dim keys", textContent: "Ctrl+Enter runs · Ctrl+Space completes" });
  const history = past(form.dataset.history, sql);
  form.querySelector(".actions").append(cancel, status, keys);
  form.append(history.element);
  let current = null;

  async function send(button) {
    current?.abort();
    const control = (current = new AbortController());
    const begun = performance.now();
    const seconds = () => ((performance.now() - begun) / 1000).toFixed(1) + " s";
    const result = document.getElementById("result");
    result.setAttribute("aria-busy", "true");
    cancel.hidden = false;
    status.textContent = "Running…";
    const clock = element("span", {});
    clock.setAttribute("aria-hidden", "true");
    status.after(clock);
    const timer = setInterval(() => (clock.textContent = seconds()), 100);
    history.add(sql.value);

    try {
      const answer = await fetch(form.action, { method: "POST", signal: control.signal, headers: { Accept: "text/html" },
        body: new URLSearchParams(new FormData(form, button)) });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const next = page.getElementById("result") ?? page.getElementById("main");
      status.textContent = (next?.querySelector("h2")?.textContent ?? "Refused") + ", " + seconds();
      document.getElementById("result").replaceChildren(...(next?.childNodes ?? []));
    } catch (error) {
      if (current === control) status.textContent = control.signal.aborted ? "Canceled after " + seconds() : "The server did not answer.";
    } finally {
      clearInterval(timer);
      clock.remove();
      if (current === control) {
        current = null;
        if (document.activeElement === cancel) sql.focus();
        cancel.hidden = true;
        result.removeAttribute("aria-busy");
      }
    }
  }

  cancel.addEventListener("click", () => current?.abort());
  form.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (button && !["run", "explain"].includes(button.value)) return; // files leave as a browser does it
    event.preventDefault();
    send(button);
  });
  sql.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    form.requestSubmit(form.querySelector("button.first"));
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("#result select")) form.requestSubmit(form.querySelector("button.first"));
  });
}

// past is the list of what was run before, the latest first. The key keeps those who share a browser apart.
function past(caller, sql) {
  const key = "dagctl query " + caller;
  const list = element("ul", {});
  const clear = element("button", { type: "button", textContent: "Clear" });
  const box = element("details", { className: "history" });
  box.append(element("summary", { textContent: "History" }), list,
    element("p", { className: "dim", textContent: "The last " + kept + " statements, in this browser only. " }));
  box.lastChild.append(clear);

  const read = () => {
    try {
      return JSON.parse(localStorage.getItem(key)) ?? [];
    } catch {
      return []; // it is not ours, or may not be read
    }
  };
  const write = (all) => {
    try {
      localStorage.setItem(key, JSON.stringify(all));
    } catch {
      // there is no room, or it is not allowed: there is no history
    }
    show();
  };
  const show = () => {
    const all = read();
    box.hidden = all.length === 0;
    list.replaceChildren(...all.map((text) => {
      const item = element("li", {});
      const again = element("button", { type: "button", className: "insert", textContent: text.replace(/\s+/g, " ").slice(0, 120) });
      again.addEventListener("click", () => {
        sql.value = text;
        sql.focus();
      });
      item.append(again);
      return item;
    }));
  };

  clear.addEventListener("click", () => write([]));
  show();
  return { element: box, add: (text) => write([text, ...read().filter((old) => old !== text)].slice(0, kept)) };
}

function element(name, properties) {
  return Object.assign(document.createElement(name), properties);
}
