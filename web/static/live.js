// A page that has changed is fetched again, and what differs is put in place: what is open, focused or typed stays.
// The element that follows changes says so by data-live.

// refresh fetches the page anew and puts what it shows in place of what it showed.
export async function refresh() {
  const main = document.getElementById("main");
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const next = page.getElementById("main");
  if (!next) return;
  Idiomorph.morph(main, next, {
    ignoreActiveValue: true,
    callbacks: {
      // A form that somebody has begun to fill in, and what the page's own scripts have made, stay as they are.
      beforeNodeMorphed: (old) => !(old instanceof Element && (old.matches("form[data-begun]") || old.hasAttribute("data-kept"))),
      beforeAttributeUpdated: (name, node) => !(node instanceof HTMLDetailsElement && name === "open"),
    },
  });
  document.dispatchEvent(new Event("page:refreshed"));
}

document.addEventListener("input", (event) => event.target.form?.setAttribute("data-begun", ""));
