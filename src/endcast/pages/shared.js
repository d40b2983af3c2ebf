"use strict";
// What every live page needs. Everything that comes from the other side is put in as text, never as markup.
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
const known = (x) => x !== null && x !== undefined;
const fixed = (x, digits) => (known(x) ? x.toFixed(digits) : "–");
const percent = (x) => (known(x) ? `${(100 * x).toFixed(1)} %` : "–");
const whole = (x) => Math.round(x).toLocaleString("en-US");
const millis = (x) => (known(x) ? `${(1000 * x).toFixed(1)} ms` : "–");

function element(name, text, className) {
  const made = document.createElement(name);
  if (known(text)) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function tiles(id, pairs) {
  byId(id).replaceChildren(...pairs.map(([name, value]) => {
    const tile = element("div");
    tile.append(element("dt", name), element("dd", value));
    return tile;
  }));
}

// A cell is text, [text, className] or an element.
function cellOf(cell) {
  if (Array.isArray(cell)) return element("td", cell[0], cell[1]);
  if (!(cell instanceof Node)) return element("td", cell);
  const made = element("td");
  made.append(cell);
  return made;
}

// rows: lists of cells; an empty table says `nothing` instead.
function table(id, heads, rows, nothing) {
  if (!rows.length) {
    byId(id).replaceChildren(element("p", nothing, "hint"));
    return;
  }
  const made = element("table");
  const head = element("tr");
  head.append(...heads.map((text) => element("th", text)));
  made.append(element("thead"), element("tbody"));
  made.tHead.append(head);
  made.tBodies[0].append(...rows.map((cells) => {
    const row = element("tr");
    row.append(...cells.map((cell) => cellOf(cell)));
    return row;
  }));
  byId(id).replaceChildren(made);
}

function badge(text, good) {
  byId("state").textContent = text;
  byId("state").className = `badge ${good ? "good" : "bad"}`;
}

function note(text) {
  byId("note").textContent = text;
  byId("note").hidden = !text;
}

// Asks `path` every `everyMs` while the page is looked at, with the key that was typed in (kept under `storage` for the
// session), and hands what it is told to `show`. `who` answers. Returns a function that asks at once.
function watch({ path, storage, who, everyMs, show }) {
  async function refresh() {
    const key = sessionStorage.getItem(storage);
    try {
      const answer = await fetch(path, { headers: key ? { authorization: `Bearer ${key}` } : {}, cache: "no-store" });
      byId("login").hidden = answer.status !== 401;
      if (answer.status === 401) {
        badge("locked", false);
        note(key ? `The ${who} does not know this key.` : "");
        byId("figures").hidden = true;
        return;
      }
      if (!answer.ok) throw new Error(`the ${who} answered ${answer.status}`);
      show(await answer.json());
      note("");
    } catch (error) {
      badge("no answer", false);
      note(`The figures below may be old: ${error.message}`);
    }
  }
  byId("login").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(storage, byId("key").value);
    byId("key").value = "";
    refresh();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  setInterval(() => { if (!document.hidden) refresh(); }, everyMs);
  refresh();
  return refresh;
}
