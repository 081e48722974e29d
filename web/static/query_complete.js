// Completion of a statement: columns of the datasets that it names, datasets, keywords and functions, while one types and
// by Ctrl+Space. Arrows choose, Enter and Tab take, Escape closes; then Tab leaves the field as everywhere.
import { datasets, written } from "./query_schema.js";

const keywords = `SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT OFFSET JOIN LEFT RIGHT FULL INNER OUTER CROSS ASOF NATURAL ON
  USING UNION ALL INTERSECT EXCEPT DISTINCT AS AND OR NOT IN IS NULL LIKE ILIKE BETWEEN EXISTS CASE WHEN THEN ELSE END CAST
  WITH RECURSIVE MATERIALIZED OVER PARTITION ROWS RANGE PRECEDING FOLLOWING UNBOUNDED CURRENT ROW WINDOW QUALIFY FILTER
  ASC DESC NULLS FIRST LAST EXCLUDE REPLACE COLUMNS PIVOT UNPIVOT VALUES UNNEST LATERAL INTERVAL TRUE FALSE DATE TIMESTAMP
  TABLESAMPLE GROUPING SETS ROLLUP CUBE ESCAPE SIMILAR COLLATE`.split(/\s+/);
const functions = `abs age any_value approx_count_distinct approx_quantile arg_max arg_min array_agg avg bit_and bit_or
  bool_and bool_or ceil coalesce concat concat_ws contains corr count count_if covar_pop cume_dist current_date date_add
  date_diff date_part date_sub date_trunc day dayname dayofweek dayofyear dense_rank epoch epoch_ms exp first first_value
  floor format generate_series greatest hash histogram hour if ifnull isfinite isnan json_extract json_extract_string kurtosis
  lag last last_day last_value lead least left length list list_aggregate list_contains list_distinct list_filter list_sort
  list_sum list_transform list_value ln log lower lpad ltrim mad make_date make_timestamp map max md5 median min minute mod mode
  month monthname nth_value ntile nullif percent_rank pi position pow product quantile_cont quantile_disc quarter random range
  rank regexp_extract regexp_extract_all regexp_full_match regexp_matches regexp_replace repeat replace reverse right round
  row_number rpad rtrim second sign skewness split_part sqrt starts_with stddev stddev_pop strftime string_agg string_split
  strip_accents strlen strptime struct_pack substring sum time_bucket to_days to_hours to_timestamp trim trunc try_cast typeof
  unicode unnest upper uuid var_pop variance week weekofyear year`.split(/\s+/);

const shown = 12;
const known = new Map(); // columns by dataset

// complete gives a field its list.
export function complete(field) {
  const list = document.createElement("ul");
  list.id = "completions";
  list.className = "completions";
  list.hidden = true;
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Completions");
  const said = document.createElement("span");
  said.className = "unseen";
  said.setAttribute("role", "status");
  field.closest("form").append(list, said);
  field.setAttribute("aria-autocomplete", "list");
  field.setAttribute("aria-controls", list.id);
  field.setAttribute("aria-haspopup", "listbox");
  let options = [];
  let active = 0;
  let asked = 0; // the latest question: an answer that comes late is dropped

  const close = () => {
    asked++;
    list.hidden = true;
    options = [];
    field.removeAttribute("aria-activedescendant");
  };
  const choose = (at) => {
    active = (at + options.length) % options.length;
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === active)));
    list.children[active].scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", list.children[active].id);
  };
  const take = (at) => {
    const word = wordBefore(field);
    field.setRangeText(options[at].text, field.selectionStart - word.length, field.selectionStart, "end");
    close();
    field.focus();
  };

  const open = async (byHand) => {
    const question = ++asked;
    const word = wordBefore(field);
    if (!byHand && (word.length < 1 || inText(field))) return close();
    const found = await candidates(field, word);
    if (question !== asked) return;
    options = found.slice(0, shown);
    if (options.length === 0 || (options.length === 1 && options[0].text.toLowerCase() === word.toLowerCase())) return close();

    list.replaceChildren(...options.map((option, i) => {
      const item = document.createElement("li");
      item.id = "completion-" + i;
      item.setAttribute("role", "option");
      item.append(option.text + " ");
      item.appendChild(document.createElement("small")).textContent = option.kind;
      item.addEventListener("mousedown", (event) => {
        event.preventDefault();
        take(i);
      });
      return item;
    }));
    list.hidden = false;
    place(list, field);
    said.textContent = options.length + (options.length === 1 ? " completion" : " completions");
    choose(0);
  };

  field.addEventListener("input", () => open(false));
  field.addEventListener("blur", close);
  field.addEventListener("click", close);
  field.addEventListener("keydown", (event) => {
    if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      open(true);
      return;
    }
    if (list.hidden) return;
    const does = { ArrowDown: () => choose(active + 1), ArrowUp: () => choose(active - 1), Escape: close,
      Enter: () => take(active), Tab: () => take(active) }[event.key];
    if (!does || event.ctrlKey || event.metaKey || event.shiftKey) {
      if (["ArrowLeft", "ArrowRight", "Home", "End", "Tab", "Enter"].includes(event.key)) close();
      return;
    }
    event.preventDefault();
    does();
  });
}

// wordBefore returns the word that ends at the cursor.
function wordBefore(field) {
  return /[\p{L}\p{N}_"/]*$/u.exec(field.value.slice(0, field.selectionStart))[0];
}

// inText reports whether the cursor is in a string or in a comment.
function inText(field) {
  const before = field.value.slice(0, field.selectionStart).replace(/'[^']*'|--.*\n|\/\*[^]*?\*\//g, "");
  return /'|--[^\n]*$|\/\*/.test(before);
}

// candidates returns what begins with a word: columns first, then datasets, keywords and functions.
async function candidates(field, word) {
  const plain = word.replaceAll('"', "").toLowerCase();
  const before = field.value.slice(0, field.selectionStart - word.length);
  const begins = (name) => name.toLowerCase().startsWith(plain);
  const found = [];
  const wantsDataset = /\b(from|join)\s+(?:"?[\w/]+"?(?:\s+\w+)?\s*,\s*)*$/i.test(before);

  const listed = await datasets(plain, 20).catch(() => []);
  for (const dataset of listed) known.set(dataset.name.toLowerCase(), dataset);
  if (!wantsDataset) {
    for (const name of named(field.value)) {
      const dataset = await lookUp(name);
      for (const column of dataset?.columns ?? []) {
        if (begins(column.name)) found.push({ text: written(column.name), kind: column.type + " of " + dataset.name });
      }
    }
  }
  for (const dataset of listed) {
    if (begins(dataset.name)) found.push({ text: written(dataset.name), kind: "dataset" });
  }
  if (!wantsDataset && plain) {
    for (const name of keywords) if (begins(name)) found.push({ text: name, kind: "keyword" });
    for (const name of functions) if (begins(name)) found.push({ text: name + "(", kind: "function" });
  }
  return found.filter((option, i) => found.findIndex((other) => other.text === option.text) === i);
}

// named returns the names after FROM and JOIN.
function named(text) {
  return [...text.matchAll(/\b(?:from|join)\s+("[^"]+"|[\w]+)/gi)].map((match) => match[1].replaceAll('"', "").toLowerCase());
}

// lookUp returns a dataset with its columns.
async function lookUp(name) {
  if (!known.has(name)) {
    const answer = await fetch("/v1/datasets/" + encodeURIComponent(name)).catch(() => null);
    known.set(name, answer?.ok ? await answer.json() : null);
  }
  return known.get(name);
}

// place puts the list below the cursor. A copy of the text before it tells where that is.
function place(list, field) {
  const copy = document.createElement("div");
  copy.className = "mirror";
  copy.style.width = field.clientWidth + "px";
  copy.textContent = field.value.slice(0, field.selectionStart);
  const end = copy.appendChild(document.createElement("span"));
  end.textContent = "|";
  field.after(copy);
  const form = field.closest("form").getBoundingClientRect();
  const box = field.getBoundingClientRect();
  const left = box.left - form.left + end.offsetLeft;
  list.style.top = box.top - form.top + Math.min(end.offsetTop - field.scrollTop + 22, box.height) + "px";
  list.style.left = Math.max(0, Math.min(left, form.width - list.offsetWidth)) + "px";
  copy.remove();
}
