"use strict";
// Everything that comes from the service is put in as text, never as markup.
const EVERY_MS = 5000;
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

// rows: lists of [text, className] or text; an empty table says `nothing` instead.
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
    row.append(...cells.map((cell) => (Array.isArray(cell) ? element("td", cell[0], cell[1]) : element("td", cell))));
    return row;
  }));
  byId(id).replaceChildren(made);
}

function showNow(told) {
  const last = told.rates.filter((rate) => rate.at > told.now - 30);
  const mean = (name) => (last.length ? last.reduce((sum, rate) => sum + rate[name], 0) / last.length : 0);
  const latest = [...told.rates].reverse().find((rate) => known(rate.p99_s));
  const one = told.processes > 1 ? ` (process ${told.process})` : "";
  tiles("now", [
    ["forecasts/s" + one, whole(mean("forecasts_per_s"))],
    ["calls/s", fixed(mean("calls_per_s"), 1)],
    ["errors/s", fixed(mean("errors_per_s"), 1)],
    ["median call", millis(latest && latest.p50_s)],
    ["p99 call", millis(latest && latest.p99_s)],
    ["waiting calls", whole(told.waiting_calls)],
    ["open streams", whole(told.open_streams)],
    ["degraded forecasts", whole(told.degraded_forecasts)],
    ["up", `${(told.uptime_s / 3600).toFixed(1)} h`],
  ]);
  const rates = told.rates.map((rate) => rate.forecasts_per_s);
  const top = Math.max(1, ...rates);
  const line = document.createElementNS(SVG, "polyline");
  const x = (i) => (600 * i) / Math.max(1, rates.length - 1);
  line.setAttribute("points", rates.map((rate, i) => `${x(i).toFixed(1)},${(115 - (110 * rate) / top).toFixed(1)}`).join(" "));
  byId("chart").replaceChildren(line);
  byId("chart-caption").textContent = `Forecasts per second, ten minutes at most; top of the chart: ${whole(top)}`;
}

function horizonCells(row) {
  return [whole(row.forecasts), percent(row.forecast), percent(row.happened), fixed(row.brier, 4), fixed(row.ece, 4)];
}

function showCalibration(told) {
  const heads = ["horizon", "forecasts", "forecast", "happened", "Brier score", "calibration error"];
  table("calibration", heads, told.calibration.filter((row) => row.forecasts > 0)
    .map((row) => [`${row.horizon} tokens`, ...horizonCells(row)]),
    "No outcome of a forecast is known yet: POST /v1/outcomes tells them.");
  table("quantiles", ["quantile", "forecasts", "within it", "stated"], told.quantiles.filter((row) => row.forecasts > 0)
    .map((row) => [percent(row.quantile), whole(row.forecasts), percent(row.coverage), percent(row.stated)]), "");
  const groups = told.groups.flatMap((group) => group.horizons.filter((row) => row.forecasts > 0)
    .map((row) => [[group.name, "name"], group.kind, `${row.horizon}`, ...horizonCells(row)]));
  byId("groups-section").hidden = !groups.length;
  table("groups", ["name", "kind", ...heads], groups, "");
}

function showDrift(drift) {
  byId("drift-words").textContent = drift ? drift.explanation : "This forecaster has no grid to watch.";
  byId("drift-words").className = drift && drift.alarm ? "bad" : "";
  table("drift", ["measure", "happened", "forecast", "z", ""], (drift ? drift.measures : [])
    .map((row) => [row.measure, fixed(row.happened, 1), fixed(row.forecast, 1), fixed(row.z, 2),
      row.alarm ? ["alarm", "bad"] : ""]), "");
}

function showShadow(shadow) {
  byId("shadow-section").hidden = !shadow;
  if (!shadow) return;
  byId("shadow-words").textContent = `${shadow.bundle}: ${shadow.verdict}, after ${whole(shadow.generations)} generations`;
  table("shadow", ["horizon", "Brier score, shadow less served"],
    Object.entries(shadow.differences).map(([horizon, difference]) => [horizon, fixed(difference, 5)]), "");
}

function showCard(told) {
  byId("bundle").textContent = told.bundle;
  const rows = Object.entries(told.card).map(([name, value]) => {
    const row = element("tr");
    const cell = element("td", undefined, "name");
    cell.append(element("pre", typeof value === "object" ? JSON.stringify(value, null, 1) : String(value)));
    row.append(element("td", name), cell);
    return row;
  });
  const made = element("table");
  made.append(...rows);
  byId("card").replaceChildren(rows.length ? made : element("p", "It says nothing of itself.", "hint"));
}

function badge(text, good) {
  byId("state").textContent = text;
  byId("state").className = `badge ${good ? "good" : "bad"}`;
}

function show(told) {
  byId("version").textContent = told.endcast;
  const alarm = told.drift !== null && told.drift.alarm;
  badge(told.status === "ready" && alarm ? "ready, drifting" : told.status, told.status === "ready" && !alarm);
  showNow(told);
  showCalibration(told);
  showDrift(told.drift);
  showShadow(told.shadow);
  tiles("outcomes", Object.entries(told.outcomes).map(([name, count]) => [name, whole(count)]));
  showCard(told);
  byId("figures").hidden = false;
}

function note(text) {
  byId("note").textContent = text;
  byId("note").hidden = !text;
}

async function refresh() {
  const key = sessionStorage.getItem("endcast-key");
  try {
    const answer = await fetch("v1/status", { headers: key ? { authorization: `Bearer ${key}` } : {}, cache: "no-store" });
    byId("login").hidden = answer.status !== 401;
    if (answer.status === 401) {
      badge("locked", false);
      note(key ? "The service does not know this key." : "");
      byId("figures").hidden = true;
      return;
    }
    if (!answer.ok) throw new Error(`the service answered ${answer.status}`);
    show(await answer.json());
    note("");
  } catch (error) {
    badge("no answer", false);
    note(`The figures below may be old: ${error.message}`);
  }
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("endcast-key", byId("key").value);
  byId("key").value = "";
  refresh();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
setInterval(() => { if (!document.hidden) refresh(); }, EVERY_MS);
refresh();
