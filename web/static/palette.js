// A dialog that finds pages, DAGs, jobs and datasets: Ctrl or Cmd with K, "/", or the button of the header. Two keys lead to
// the pages of the navigation, and "?" lists the keys.

const links = [...document.querySelectorAll("header nav a, nav.tabs a")];
const pages = links.map((a) => ({ kind: "page", name: a.textContent.trim(), path: a.getAttribute("href") }));
const letters = { "/dags": "d", "/tasks": "t", "/dead": "x", "/late": "l", "/datasets": "s", "/query": "q", "/workers": "w", "/users": "a", "/": "h", "/sources": "o", "/timers": "i", "/secrets": "e" };

const element = (name, attributes, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

const input = element("input", { type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": "palette-list",
  "aria-autocomplete": "list", "aria-label": "Find a page, DAG, job or dataset", placeholder: "Find a page, DAG, job or dataset",
  autocomplete: "off", spellcheck: "false" });
const list = element("ul", { id: "palette-list", role: "listbox", "aria-label": "Found" });
const status = element("p", { role: "status", class: "dim" });
const palette = element("dialog", { class: "palette", "aria-label": "Find" }, input, list, status);
const help = element("dialog", { class: "palette", "aria-labelledby": "keys-title" });

let shown = [], at = 0, asked = 0, waiting;

function show(found) {
  shown = found;
  at = 0;
  list.replaceChildren(...found.map((one, i) => {
    const option = element("li", { role: "option", id: `palette-${i}` }, element("span", {}, one.name), element("span", { class: "dim" }, one.kind));
    option.addEventListener("click", () => go(one));
    return option;
  }));
  status.textContent = found.length ? "" : "Nothing of that name.";
  point(0);
}

function point(to) {
  at = shown.length ? (to + shown.length) % shown.length : 0;
  [...list.children].forEach((option, i) => option.setAttribute("aria-selected", String(i === at)));
  if (shown.length) {
    input.setAttribute("aria-activedescendant", `palette-${at}`);
    list.children[at].scrollIntoView({ block: "nearest" });
  } else input.removeAttribute("aria-activedescendant");
}

const go = (one) => one && location.assign(one.path);

async function search() {
  waiting = undefined;
  const text = input.value.trim().replace(/^\/+/, ""), mine = ++asked; // the key that opens it may be typed into it
  const near = pages.filter((page) => page.name.toLowerCase().includes(text.toLowerCase()));
  if (!text) return show(near);
  try {
    const answer = await fetch("/palette?" + new URLSearchParams({ search: text }));
    if (mine === asked && answer.ok) show([...near, ...(await answer.json())]);
  } catch {
    if (mine === asked) show(near);
  }
}

function open() {
  if (palette.open) return;
  palette.showModal();
  input.value = "";
  show(pages);
  input.focus();
}

input.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(search, 80);
});
input.addEventListener("keydown", async (event) => {
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    point(at + (event.key === "ArrowDown" ? 1 : -1));
  } else if (event.key === "Enter") {
    event.preventDefault();
    if (waiting !== undefined) {
      clearTimeout(waiting);
      await search(); // what was typed last
    }
    go(shown[at]);
  }
});

// keysOf lists the keys of the page that is shown.
function keysOf() {
  const all = [["/ or Ctrl K", "find a page, DAG, job or dataset"], ["?", "these keys"]];
  for (const page of pages) if (letters[page.path]) all.push([`g ${letters[page.path]}`, page.name]);
  if (document.querySelector(".graph-box"))
    all.push(["+ − 0 f", "in a graph: zoom in, out, to full size, to fit"], ["[ ]", "in a graph: fold what is up- or downstream of a node"]);
  return all;
}

function showHelp() {
  const rows = keysOf().map(([keys, does]) => [element("dt", {}, element("kbd", {}, keys)), element("dd", {}, does)]).flat();
  const close = element("button", { type: "button" }, "Close");
  close.addEventListener("click", () => help.close());
  help.replaceChildren(element("h2", { id: "keys-title" }, "Keys"), element("dl", {}, ...rows), close);
  help.showModal();
}

let went = false; // "g" has been pressed, and what follows says where to
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    open();
    return;
  }
  // The field of a closed dialog may keep the focus, where nothing else had it.
  const typing = event.target.matches?.(":is(input, textarea, select, [contenteditable]):not(dialog:not([open]) *)");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;

  const path = went && Object.keys(letters).find((path) => letters[path] === event.key);
  went = event.key === "g";
  if (path && pages.some((page) => page.path === path)) location.assign(path);
  else if (event.key === "/") {
    event.preventDefault();
    open();
  }
  else if (event.key === "?") showHelp();
});

const button = document.getElementById("find");
if (button) {
  document.body.append(palette, help);
  button.hidden = false;
  button.addEventListener("click", open);
}
