// Files that somebody chooses on the page of a plan fill its fields: the DAG file its own, and the files that the
// document names theirs. The browser says no folder of a file, so a field is found by the last part of its path.
const form = document.querySelector("form[data-document]");
if (form) offer(form);

// offer puts a field to choose files before those of a form.
function offer(form) {
  const label = document.createElement("label");
  const input = document.createElement("input");
  Object.assign(input, { type: "file", multiple: true, accept: ".yaml,.yml,.sql,.json,.py,.txt" });
  label.append("Choose dag.yaml and the files that it names, or drop them here ", input);
  form.prepend(label);
  input.addEventListener("change", async () => {
    for (const file of input.files) fill(form, file.name, await file.text());
    form.setAttribute("data-begun", "");
  });
}

// fill puts the text of a file into the field that it belongs to, and makes one where there is none.
function fill(form, name, text) {
  const fields = [...form.querySelectorAll("textarea")];
  let field = fields.find((f) => f.name === `file:${name}` || f.name.endsWith(`/${name}`));
  if (!field && /\.ya?ml$/.test(name)) field = form.elements.yaml;
  if (!field) {
    field = Object.assign(document.createElement("textarea"), { name: `file:${name}`, rows: 10, spellcheck: false });
    const label = document.createElement("label");
    label.append(`${name} `, field);
    form.elements.yaml.parentElement.after(label);
  }
  field.value = text;
}
