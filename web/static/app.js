// What pages do beyond showing themselves. Each part is a module of its own that does nothing on pages without what it
// is for; every page reads, and every form sends, without any of them.
import "./live.js";
import "./document.js";
import "./query.js";
import "./graph.js";
import "./palette.js";
