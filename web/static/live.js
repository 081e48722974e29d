// A page that has changed is fetched again, and what differs is put in place: what is open, focused or typed stays.
// A page says by data-live of its main element what it follows: the query of /v1/stream, or "all".

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

const follows = document.getElementById("main")?.dataset.live;
if (follows) follow(follows === "all" ? "/v1/stream" : "/v1/stream?" + follows);

// follow refreshes the page whenever the stream tells of a change: at most once a second, less often where the page
// takes long to make, and not while nobody sees it.
function follow(address) {
  const soonest = 1000, effort = 4; // milliseconds; how many times as long as it takes lies between two refreshes
  let source, again, timer, last = 0, took = 0, patience = 2000;
  const badge = document.getElementById("live");
  const say = (text) => {
    if (badge.textContent === text) return;
    badge.textContent = text;
    badge.classList.toggle("away", text !== "Live");
  };

  let running = false, behind = false;
  const run = async () => {
    const began = performance.now();
    [timer, running, behind] = [undefined, true, false];
    try {
      await refresh();
    } catch {
      // The server is away; the stream says when it is back.
    }
    last = performance.now();
    [took, running] = [last - began, false];
    if (behind) soon();
  };
  const soon = () => {
    behind = running; // a change that comes while the page is on its way is fetched after it
    if (running || timer !== undefined || document.hidden) return;
    timer = setTimeout(run, Math.max(0, last + Math.max(soonest, effort * took) - performance.now()));
  };

  const open = () => {
    close();
    if (document.hidden) return;
    source = new EventSource(address);
    source.addEventListener("ready", () => {
      patience = 2000;
      say("Live");
      soon(); // what has happened since the page was made
    });
    source.addEventListener("change", soon);
    source.addEventListener("error", () => {
      say("Reconnecting…");
      if (source.readyState !== EventSource.CLOSED) return; // the browser tries again
      signedOut().then((out) => out && say("Signed out: load the page again"));
      again = setTimeout(open, patience);
      patience = Math.min(2 * patience, 60000);
    });
  };
  const signedOut = async () => {
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, method: "HEAD" });
      return answer.status === 401 || answer.redirected; // to the page that signs in
    } catch {
      return false; // the server is away
    }
  };
  const close = () => {
    clearTimeout(again);
    source?.close();
  };

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && open());
  open();
}
