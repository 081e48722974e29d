// The datasets beside the statement: names and columns become buttons that put themselves into it, and the search
// answers while one types.

// datasets returns what a search finds, with columns, as the API has it.
export async function datasets(search, limit, signal) {
  const answer = await fetch("/v1/datasets?" + new URLSearchParams({ search, limit }), { signal });
  return answer.ok ? ((await answer.json()).items ?? []) : [];
}

// written returns a name as a statement has it.
export function written(name) {
  return /^[a-z_][a-z0-9_]*$/.test(name) ? name : '"' + name.replaceAll('"', '""') + '"';
}

// browse gives the list its buttons.
export function browse(sql) {
  const list = document.querySelector(".schema .list");
  const find = document.querySelector(".schema input[type=search]");
  if (!list || !find) return;

  const insert = (text) => {
    const before = sql.value.slice(0, sql.selectionStart);
    const space = before && !/[\s(.,]$/.test(before) ? " " : "";
    sql.setRangeText(space + text, sql.selectionStart, sql.selectionEnd, "end");
    sql.focus();
  };
  const buttons = () => {
    for (const place of list.querySelectorAll("[data-insert]")) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "insert";
      if (place.matches("summary")) {
        button.textContent = "+";
        button.title = "insert " + place.textContent;
        button.setAttribute("aria-label", button.title);
        button.addEventListener("click", () => insert(place.dataset.insert));
        const row = document.createElement("div");
        row.className = "entry";
        place.parentElement.replaceWith(row);
        row.append(place.parentElement, button);
      } else {
        button.textContent = place.textContent;
        button.addEventListener("click", () => insert(place.dataset.insert));
        place.replaceWith(button);
      }
    }
  };

  let current = null;
  const search = async () => {
    current?.abort();
    current = new AbortController();
    try {
      const found = await datasets(find.value, 30, current.signal);
      list.replaceChildren(...found.map(entry));
      if (found.length === 0) list.textContent = "No dataset matches.";
      buttons();
    } catch {
      // a later search has taken its place
    }
  };

  let waiting = 0;
  find.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(search, 150);
  });
  find.form.addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
  buttons();
}

function entry(dataset) {
  const box = document.createElement("details");
  const name = box.appendChild(document.createElement("summary"));
  name.textContent = dataset.name;
  name.dataset.insert = written(dataset.name);
  const columns = box.appendChild(document.createElement("ul"));
  for (const column of dataset.columns ?? []) {
    const item = columns.appendChild(document.createElement("li"));
    const word = item.appendChild(document.createElement("span"));
    word.textContent = column.name;
    word.dataset.insert = written(column.name);
    item.append(" ");
    item.appendChild(document.createElement("small")).textContent = column.type;
  }
  return box;
}
